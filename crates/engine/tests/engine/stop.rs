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

/// Stops a run at places all over it. Each time the engine makes the same images afterwards. Engines are new, since they keep the
/// latents of input images.
fn stop_everywhere(open: &dyn Fn() -> Engine, job: &dyn Fn(&Engine) -> Job, stages: &[Stage]) {
    let (mut engine, running) = (open(), Running::default());
    let job = &job(&engine);
    let expected = bits(&run(&mut engine, job, &running).unwrap());
    let (asked, images) = count(&mut open(), job);
    assert_eq!(bits(&images), expected, "a sign that is not set changes nothing");
    for stage in stages {
        assert!(asked.get(stage.id()).is_some_and(|asked| *asked >= 8), "{}: {asked:?}", stage.id());
    }
    let total: usize = asked.values().sum();
    for place in (0..total).step_by(total / 16) {
        let (asked, mut engine) = (AtomicUsize::new(0), open());
        let sign = StopSign::new(move || asked.fetch_add(1, Ordering::Relaxed) >= place);
        let stopped = sign.during(|| run(&mut engine, job, &running));
        assert!(matches!(stopped, Err(Error::Interrupted)), "after {place} of {total} questions");
        assert_eq!(bits(&run(&mut engine, job, &running).unwrap()), expected, "after {place} of {total} questions");
    }
}

#[test]
fn a_run_stops_within_every_network() {
    let stages = [Stage::Encode, Stage::EncodeImage, Stage::Denoise, Stage::Decode];
    for setup in [cpu(), cpu_in(ModeChoice::Lowvram)] {
        let init = || Init::Masked { image: init_image(InitLatents::Sample), mask: init_mask(), strength: 0.6 };
        let job = |engine: &Engine| job_with(engine, &request("a pear", (64, 64), 3, 7), Some(init()));
        stop_everywhere(&|| tiny("sd1", &setup), &job, &stages);
    }
}

/// The engine's own threads take the sign of the thread that calls.
#[test]
fn a_run_on_threads_of_its_own_stops() {
    let open = || tiny("sdxl", &kiln_engine::Setup { threads: Some(2), ..cpu() });
    let job = |engine: &Engine| job_with(engine, &request("a pear", (64, 64), 2, 7), None);
    stop_everywhere(&open, &job, &[Stage::Encode, Stage::Denoise, Stage::Decode]);
}
