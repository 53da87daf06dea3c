//! Runs that end within a call of a network, by the sign of the calling thread.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use kiln_engine::{Engine, Error, Event, GeneratedImage, Init, InitLatents, Job, ModeChoice, Result, Stage, StopSign};

use crate::support::cases::{init_image, init_mask, job_with};
use crate::support::{bits, cpu, cpu_in, request, tiny};

/// The stage that runs.
type Running = Arc<Mutex<Option<Stage>>>;

fn run(engine: &mut Engine, job: &Job, running: &Running) -> Result<Vec<GeneratedImage>> {
    let mut images = Vec::new();
    engine.txt2img(job, &mut |event| {
        match event {
            Event::Image(image) => images.push(*image),
            Event::Begin(stage) => *running.lock().unwrap() = Some(stage),
            _ => {}
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(images)
}

/// The number of questions in each stage of an undisturbed run, and its images.
fn count(engine: &mut Engine, job: &Job) -> (BTreeMap<&'static str, usize>, Vec<GeneratedImage>) {
    let running = Running::default();
    let asked = Arc::new(Mutex::new(BTreeMap::new()));
    let (now, counts) = (running.clone(), asked.clone());
    let sign = StopSign::new(move || {
        let stage = now.lock().unwrap().map_or("none", Stage::id);
        *counts.lock().unwrap().entry(stage).or_insert(0) += 1;
        false
    });
    let images = sign.during(|| run(engine, job, &running)).unwrap();
    let asked = asked.lock().unwrap().clone();
    (asked, images)
}

/// Stops a run at places all over it. Each time the engine makes the same images afterwards.
fn stop_everywhere(engine: &mut Engine, job: &Job, stages: &[Stage]) {
    let running = Running::default();
    let expected = bits(&run(engine, job, &running).unwrap());
    let (asked, images) = count(engine, job);
    assert_eq!(bits(&images), expected, "a sign that is not set changes nothing");
    for stage in stages {
        assert!(asked.get(stage.id()).is_some_and(|asked| *asked >= 8), "{}: {asked:?}", stage.id());
    }
    let total: usize = asked.values().sum();
    for place in (0..total).step_by(total / 16) {
        let asked = AtomicUsize::new(0);
        let sign = StopSign::new(move || asked.fetch_add(1, Ordering::Relaxed) >= place);
        let stopped = sign.during(|| run(engine, job, &running));
        assert!(matches!(stopped, Err(Error::Interrupted)), "after {place} of {total} questions");
        assert_eq!(bits(&run(engine, job, &running).unwrap()), expected, "after {place} of {total} questions");
    }
}

#[test]
fn a_run_stops_within_every_network() {
    let stages = [Stage::EncodeImage, Stage::Denoise, Stage::Decode];
    for setup in [cpu(), cpu_in(ModeChoice::Lowvram)] {
        let mut engine = tiny("sd1", &setup);
        let init = Init::Masked { image: init_image(InitLatents::Sample), mask: init_mask(), strength: 0.6 };
        let job = job_with(&engine, &request("a pear", (64, 64), 3, 7), Some(init));
        stop_everywhere(&mut engine, &job, &stages);
    }
}

/// The engine's own threads take the sign of the thread that calls.
#[test]
fn a_run_on_threads_of_its_own_stops() {
    let mut engine = tiny("sdxl", &kiln_engine::Setup { threads: Some(2), prompt_cache: Some(0), ..cpu() });
    let job = job_with(&engine, &request("a pear", (64, 64), 2, 7), None);
    stop_everywhere(&mut engine, &job, &[Stage::Encode, Stage::Denoise, Stage::Decode]);
}
