//! Guidance beyond one strength against diffusers and the programs that have it, in every mode and batch.

use std::ops::ControlFlow;

use kiln_engine::{Engine, Event, GeneratedImage, Job, ModeChoice, Request, RunningBatch};
use kiln_testkit::{Fixture, Parity, fixtures};
use serde::Deserialize;

use crate::support::cases::{init_of_task, job_with};
use crate::support::{bits, cpu, cpu_in, images, latents, request, run, tiny};

/// Largest error of final latents in f32, in their standard deviations.
const BOUND: f64 = 1e-3;

/// A case of `guidance.json`.
#[derive(Deserialize)]
struct Case {
    kind: String,
    name: String,
    task: String,
    strength: f64,
    request: serde_json::Value,
}

impl Case {
    /// All cases of the model `kind`.
    fn all(kind: &str) -> Vec<Self> {
        let text = std::fs::read_to_string(fixtures("guidance.json")).unwrap();
        let cases: Vec<Self> = serde_json::from_str(&text).unwrap();
        cases.into_iter().filter(|case| case.kind == kind).collect()
    }

    fn request(&self) -> Request {
        serde_json::from_value(self.request.clone()).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn job(&self, engine: &Engine) -> Job {
        job_with(engine, &self.request(), init_of_task(&self.task, self.strength))
    }
}

#[test]
fn latents_are_those_of_the_reference() {
    let fixture = Fixture::open("guidance.safetensors");
    for kind in ["sd1", "sd2v", "sdxl"] {
        let mut engine = tiny(kind, &cpu());
        for case in Case::all(kind) {
            let parity = Parity::new("guidance", format!("{kind} f32"));
            let job = case.job(&engine);
            let expected = fixture.tensor(&format!("{kind}.{}", case.name));
            parity.check(&case.name, &latents(&run(&mut engine, &job)), &expected, BOUND);
        }
    }
}

/// Each part changes the image, and leaves nothing behind in the engine.
#[test]
fn a_part_that_is_off_leaves_the_image_as_it_was() {
    let mut engine = tiny("sd1", &cpu());
    for case in Case::all("sd1").into_iter().filter(|case| case.task == "txt2img") {
        let (with, request) = (case.job(&engine), case.request());
        let plain = Request {
            sampler: request.sampler,
            batch_size: request.batch_size,
            cfg_scale: request.cfg_scale,
            guidance_rescale: request.guidance_rescale,
            ..crate::support::request(&request.prompt, (with.width, with.height), with.steps, with.seed)
        };
        let plain = plain.resolve(engine.model()).unwrap();
        let expected = bits(&run(&mut engine, &plain));
        assert!(bits(&run(&mut engine, &with)) != expected, "{}", case.name);
        assert!(bits(&run(&mut engine, &plain)) == expected, "{}", case.name);
    }
}

#[test]
fn an_image_is_the_same_in_every_mode_and_batch() {
    let three = |case: &Case| Request { batch_size: Some(3), ..case.request() };
    let cases: Vec<Case> = Case::all("sd1").into_iter().filter(|case| case.task == "txt2img").collect();
    let mut engine = tiny("sd1", &cpu());
    let all: Vec<Vec<GeneratedImage>> = cases.iter().map(|case| images(&mut engine, &three(case))).collect();
    for (case, all) in cases.iter().zip(&all) {
        let one = Request { batch_size: None, seed: case.request().seed.map(|seed| seed + 2), ..case.request() };
        let alone = images(&mut engine, &one);
        assert!(bits(&alone) == bits(&all[2..]), "{}", case.name);
    }
    for mode in [ModeChoice::Medvram, ModeChoice::Lowvram] {
        let mut engine = tiny("sd1", &cpu_in(mode));
        for (case, all) in cases.iter().zip(&all) {
            let job = three(case).resolve(engine.model()).unwrap();
            assert!(bits(&run(&mut engine, &job)) == bits(all), "{mode:?} {}", case.name);
        }
    }
}

/// Jobs of all kinds run together, and the later ones join when the first are on their way.
#[test]
fn running_batches_keep_their_bits() {
    let mut engine = tiny("sd1", &cpu());
    let mut jobs: Vec<Job> = Vec::new();
    for case in Case::all("sd1").into_iter().filter(|case| case.task == "txt2img") {
        for seed in [3, 4] {
            let request = Request { seed: Some(seed), batch_size: Some(1), ..case.request() };
            jobs.push(request.resolve(engine.model()).unwrap());
        }
    }
    jobs.push(request("a red apple", (64, 64), 6, 3).resolve(engine.model()).unwrap());
    let alone: Vec<Vec<u32>> = jobs.iter().map(|job| bits(&run(&mut engine, job))).collect();
    let mut running = RunningBatch::new();
    let mut watch = |_: Event| ControlFlow::Continue(());
    let (mut ids, mut done) = (Vec::new(), Vec::new());
    let mut waiting = jobs.iter();
    while done.len() < jobs.len() {
        for job in waiting.by_ref().take(5) {
            ids.push(engine.join(&mut running, job, 0, &mut watch).unwrap());
        }
        done = engine.step(&mut running, &mut watch).unwrap();
    }
    for ((id, job), alone) in ids.into_iter().zip(&jobs).zip(alone) {
        let images = engine.finish(&mut running, id, (job, 0), &mut watch).unwrap();
        assert!(bits(&images) == alone, "{:?}", images[0].settings);
    }
}

#[test]
fn settings_make_the_image_again() {
    let mut engine = tiny("sd1", &cpu());
    for case in Case::all("sd1").into_iter().filter(|case| case.task == "txt2img") {
        let request = Request { batch_size: None, ..case.request() };
        let made = images(&mut engine, &request);
        let settings: serde_json::Value = serde_json::from_str(&made[0].settings).unwrap();
        let again: Request = serde_json::from_value(settings["request"].clone()).unwrap();
        let again = images(&mut engine, &again);
        assert!(bits(&again) == bits(&made), "{}", case.name);
    }
}

#[test]
fn impossible_values_are_named() {
    let engine = tiny("sd1", &cpu());
    let message = |fields: &str| {
        let request: Request = serde_json::from_str(&format!("{{\"prompt\": \"a pear\", {fields}}}")).unwrap();
        request.resolve(engine.model()).unwrap_err().to_string()
    };
    for (fields, expected) in [
        ("\"cfg_schedule\": []", "`cfg_schedule` is empty"),
        ("\"cfg_schedule\": [3, -1]", "`cfg_schedule` is -1.0, expected numbers from 0"),
        ("\"apg_momentum\": 0.5", "`apg_momentum` is 0.5, expected `apg_eta` too"),
        ("\"apg_eta\": 11", "`apg_eta` is 11.0"),
        ("\"pag_layers\": \"mid\"", "`pag_layers` is mid, expected `pag_scale` too"),
        ("\"pag_scale\": 3, \"pag_layers\": \"mid,up_blocks.0\"", "`pag_layers` is up_blocks.0, expected layers with"),
        ("\"sag_sigma\": 2", "`sag_sigma` is 2.0, expected `sag_scale` too"),
        ("\"sag_scale\": 1, \"pag_scale\": 1", "`sag_scale` is 1.0, expected 0 with `pag_scale`"),
        ("\"sag_scale\": 1, \"cache\": \"deepcache\"", "`sag_scale` is 1.0, expected 0 with `cache`"),
        ("\"freeu_version\": \"v2\"", "`freeu_version` is v2, expected `freeu` too"),
        ("\"cache\": \"deepcache:3:8\"", "`cache` is deepcache:3:8, expected a branch less than 8"),
        ("\"deep_shrink_end\": 0.5", "`deep_shrink_end` is 0.5, expected `deep_shrink` too"),
        ("\"deep_shrink\": 2, \"deep_shrink_block\": 8", "`deep_shrink_block` is 8, expected less than 8"),
        ("\"deep_shrink\": 2, \"deep_shrink_start\": 0.5", "`deep_shrink_start` is 0.5, expected at most"),
        ("\"deep_shrink\": 2, \"cache\": \"deepcache\"", "`deep_shrink` is 2.0, expected none with `cache`"),
    ] {
        let message = message(fields);
        assert!(message.contains(expected), "{message}");
    }
}
