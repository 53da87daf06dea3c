//! Jobs that join a running batch and leave it between two steps: each has the bits that it has alone.

use std::ops::ControlFlow;

use kiln_engine::{Engine, Error, Event, GeneratedImage, GroupId, Job, Request, RunningBatch, SamplerKind};

use crate::support::{cpu, latents, request, tiny};

fn job(engine: &Engine, request: &Request) -> Job {
    request.resolve(engine.model()).unwrap()
}

fn go(_: Event) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn alone(engine: &mut Engine, job: &Job) -> Vec<GeneratedImage> {
    let mut images = Vec::new();
    engine
        .txt2img(job, &mut |event| {
            if let Event::Image(image) = event {
                images.push(*image);
            }
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    images
}

fn same(found: &[GeneratedImage], expected: &[GeneratedImage]) -> bool {
    let bits = |images: &[GeneratedImage]| latents(images).flatten_all().unwrap().to_vec1::<f32>().unwrap();
    found.len() == expected.len()
        && bits(found) == bits(expected)
        && found.iter().zip(expected).all(|(found, expected)| {
            (&found.rgb, &found.settings, found.seed) == (&expected.rgb, &expected.settings, expected.seed)
        })
}

/// Requests that differ in all that may differ: samplers, steps, prompts with parts and schedules, guidance, sizes, counts.
fn requests() -> Vec<Request> {
    let sampled = |sampler: SamplerKind, request: Request| Request { sampler: Some(sampler.into()), ..request };
    vec![
        sampled(SamplerKind::EulerA, request("a pear", (64, 64), 5, 1)),
        sampled(SamplerKind::Dpmpp2m, request("a [fig:plum:2]", (64, 64), 4, 2)),
        Request { batch_size: Some(2), ..sampled(SamplerKind::Heun, request("a plum", (64, 64), 3, 3)) },
        sampled(SamplerKind::Ddim, request("a lime AND a pear :0.5", (64, 64), 4, 4)),
        Request { cfg_scale: Some(1.0), ..sampled(SamplerKind::Euler, request("a fig", (64, 64), 4, 5)) },
        sampled(SamplerKind::EulerA, request("a quince", (96, 64), 3, 6)),
        Request { guidance_start: Some(0.5), ..sampled(SamplerKind::UniPc, request("a pear", (64, 64), 4, 7)) },
    ]
}

#[test]
fn jobs_that_join_and_leave_have_the_bits_that_they_have_alone() {
    for kind in ["sd1", "sdxl"] {
        let mut engine = tiny(kind, &cpu());
        let jobs: Vec<Job> = requests().iter().map(|request| job(&engine, request)).collect();
        let expected: Vec<Vec<GeneratedImage>> = jobs.iter().map(|job| alone(&mut engine, job)).collect();
        let (mut running, mut waiting) = (RunningBatch::new(), jobs.iter().enumerate());
        let mut there: Vec<(usize, GroupId)> = Vec::new();
        let (mut done, mut most) = (0, 0);
        // One joins before each step. The fourth leaves early, in the middle of the others' steps.
        for step in 0.. {
            if let Some((i, job)) = waiting.next() {
                there.push((i, engine.join(&mut running, job, 0, &mut go).unwrap()));
            } else if there.is_empty() {
                break;
            }
            most = most.max(running.images());
            if step == 5
                && let Some(place) = there.iter().position(|(i, _)| *i == 3)
            {
                let (_, id) = there.remove(place);
                assert_eq!(running.progress(id), Some((2, 4)));
                assert!(running.leave(id) && !running.leave(id) && running.progress(id).is_none());
            }
            for id in engine.step(&mut running, &mut go).unwrap() {
                let place = there.iter().position(|(_, known)| *known == id).unwrap();
                let (i, id) = there.remove(place);
                let found = engine.finish(&mut running, id, (&jobs[i], 0), &mut go).unwrap();
                assert!(same(&found, &expected[i]), "{kind}: job {i}");
                done += 1;
            }
        }
        assert!(done == jobs.len() - 1 && most >= 4 && running.is_empty(), "{done} done, {most} at once");
    }
}

#[test]
fn equal_jobs_share_a_call_at_any_place_of_their_schedules() {
    let mut engine = tiny("sd1", &cpu());
    let seeds = [11, 12, 13];
    let jobs = seeds.map(|seed| job(&engine, &request("a pear", (64, 64), 4, seed)));
    let expected = jobs.each_ref().map(|job| alone(&mut engine, job));
    let mut running = RunningBatch::new();
    let mut ids = Vec::new();
    for job in &jobs {
        ids.push(engine.join(&mut running, job, 0, &mut go).unwrap());
        engine.step(&mut running, &mut go).unwrap();
    }
    assert_eq!(ids.iter().map(|id| running.progress(*id).unwrap().0).collect::<Vec<_>>(), [3, 2, 1]);
    let mut found: Vec<Vec<GeneratedImage>> = Vec::new();
    while !running.is_empty() {
        for id in engine.step(&mut running, &mut go).unwrap() {
            let i = ids.iter().position(|known| *known == id).unwrap();
            found.push(engine.finish(&mut running, id, (&jobs[i], 0), &mut go).unwrap());
        }
    }
    assert!(found.iter().zip(&expected).all(|(found, expected)| same(found, expected)));
}

#[test]
fn a_job_with_other_loras_waits_for_the_batch_to_end() {
    let mut engine = tiny("sd1", &cpu());
    let mut running = RunningBatch::new();
    let plain = job(&engine, &request("a pear", (64, 64), 2, 1));
    engine.join(&mut running, &plain, 0, &mut go).unwrap();
    let with_lora = Request { loras: vec!["some".parse().unwrap()], ..request("a pear", (64, 64), 2, 1) };
    let with_lora = job(&engine, &with_lora);
    let error = engine.join(&mut running, &with_lora, 0, &mut go).unwrap_err();
    assert!(matches!(error, Error::Request(_)) && running.images() == 1, "{error}");
}
