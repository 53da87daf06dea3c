//! Samplers, sigma schedules, guidance and seeds in whole runs of a tiny model. What they compute is held in the
//! scheduler's own tests; here it matters that all of it arrives.

use std::ops::ControlFlow;
use std::path::Path;

use kiln_engine::{
    DTypeChoice, DeviceChoice, Engine, Event, ModelFolder, Request, Result, Rng, SamplerKind, Setup, SigmaSchedule,
};
use kiln_testkit::fixtures;

fn engine() -> Engine {
    let setup = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, ..Setup::default() };
    let model = ModelFolder::open(&fixtures("models/sd1")).unwrap();
    Engine::load(model, &setup, &mut |_| ControlFlow::Continue(())).unwrap()
}

fn request() -> Request {
    let (width, height) = (Some(32), Some(32));
    Request { prompt: "a pear".into(), seed: Some(3), steps: Some(3), width, height, ..Request::default() }
}

fn pictures(engine: &mut Engine, request: &Request) -> Result<Vec<Vec<u8>>> {
    let job = request.resolve(engine.model())?;
    let mut pictures = Vec::new();
    engine.txt2img(&job, &mut |event| {
        if let Event::Picture(picture) = event {
            pictures.push(picture.rgb);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(pictures)
}

/// A copy of a model's folder with another scheduler.
fn with_scheduler(model: &str, config: &str) -> tempfile::TempDir {
    fn copy(from: &Path, to: &Path) {
        std::fs::create_dir_all(to).unwrap();
        for entry in std::fs::read_dir(from).unwrap() {
            let entry = entry.unwrap();
            let target = to.join(entry.file_name());
            match entry.file_type().unwrap().is_dir() {
                true => copy(&entry.path(), &target),
                false => drop(std::fs::copy(entry.path(), target).unwrap()),
            }
        }
    }
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures(&format!("models/{model}")), folder.path());
    std::fs::write(folder.path().join("scheduler/scheduler_config.json"), config).unwrap();
    folder
}

/// diffusers 0.42.1, `StableDiffusionPipeline.__init__`: `steps_offset` becomes 1 and `clip_sample` false. The model's own
/// configuration has both, so that the images are the same. `StableDiffusionXLPipeline` does not correct.
#[test]
fn old_scheduler_configurations_are_corrected() {
    let betas = r#""_class_name": "DDIMScheduler", "beta_start": 0.00085, "beta_end": 0.012, "set_alpha_to_one": false,
        "beta_schedule": "scaled_linear""#;
    let contradicts = format!("{{{betas}, \"steps_offset\": 0, \"clip_sample\": true}}");
    let setup = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, ..Setup::default() };
    let request = Request { sampler: Some(SamplerKind::Ddim.into()), ..request() };
    let expected = pictures(&mut engine(), &request).unwrap();
    for config in [&format!("{{{betas}}}"), &contradicts] {
        let folder = with_scheduler("sd1", config);
        let model = ModelFolder::open(folder.path()).unwrap();
        let mut engine = Engine::load(model, &setup, &mut |_| ControlFlow::Continue(())).unwrap();
        assert!(pictures(&mut engine, &request).unwrap() == expected, "{config}");
    }
    let folder = with_scheduler("sdxl", &contradicts);
    let found = ModelFolder::open(folder.path()).unwrap();
    let found = found.scheduler_config();
    assert_eq!((found.steps_offset, found.clip_sample), (Some(0), Some(true)));
}

#[test]
fn every_sampler_makes_a_picture_on_every_schedule() {
    let mut engine = engine();
    for kind in SamplerKind::ALL {
        for scheduler in [SigmaSchedule::Default, SigmaSchedule::Karras, SigmaSchedule::KlOptimal] {
            let request = Request { sampler: Some(kind.into()), scheduler, ..request() };
            assert_eq!(pictures(&mut engine, &request).unwrap().len(), 1, "{kind} {scheduler}");
        }
    }
    for scheduler in SigmaSchedule::ALL {
        for kind in [SamplerKind::Ddim, SamplerKind::EulerA, SamplerKind::Deis] {
            let request = Request { sampler: Some(kind.into()), scheduler, ..request() };
            assert_eq!(pictures(&mut engine, &request).unwrap().len(), 1, "{kind} {scheduler}");
        }
    }
}

#[test]
fn guidance_may_end() {
    let mut engine = engine();
    let mut run = |request: Request| pictures(&mut engine, &request).unwrap();
    let guided = run(request());
    let unguided = run(Request { cfg_scale: Some(1.0), ..request() });
    assert_ne!(guided, unguided);
    assert_eq!(run(Request { guidance_end: Some(0.0), ..request() }), unguided);
    let half = run(Request { guidance_end: Some(0.5), ..request() });
    assert!(half != guided && half != unguided);
    // What comes of both halves outside of the step is the same guidance.
    let rescaled = run(Request { guidance_rescale: Some(1e-12), ..request() });
    let off = guided[0].iter().zip(&rescaled[0]).map(|(a, b)| a.abs_diff(*b)).max();
    assert!(off <= Some(1), "{off:?}");
    assert_ne!(run(Request { guidance_rescale: Some(0.7), ..request() }), guided);
    let thresholded = Request { cfg_scale: Some(30.0), dynamic_thresholding: Some(0.99), ..request() };
    assert_ne!(run(thresholded), run(Request { cfg_scale: Some(30.0), ..request() }));
}

#[test]
fn seeds_beside_the_first() {
    let mut engine = engine();
    let mut run = |request: Request| pictures(&mut engine, &request).unwrap();
    let first = run(request());
    assert_ne!(run(Request { rng: Rng::Cuda, ..request() }), first);
    assert_ne!(run(Request { seed_resize_from: Some((16, 24)), ..request() }), first);
    let varied = |strength| Request { subseed: Some(8), subseed_strength: Some(strength), ..request() };
    assert_eq!(run(varied(0.0)), first);
    assert_ne!(run(varied(0.1)), first);
    // Two variations at once have one seed, and the second seeds count on.
    let two = run(Request { batch_size: Some(2), ..varied(0.1) });
    assert_eq!(two[0], run(varied(0.1))[0]);
    assert_eq!(two[1], run(Request { subseed: Some(9), ..varied(0.1) })[0]);
    let ancestral = Request { sampler: Some(SamplerKind::EulerA.into()), ..request() };
    assert_ne!(run(ancestral.clone()), run(Request { ensd: Some(31337), ..ancestral }));
}

#[test]
fn what_the_sampler_does_not_take_is_refused() {
    let engine = engine();
    let message = |request: Request| {
        let error = request.resolve(engine.model()).unwrap_err();
        assert!(error.is_usage(), "{error}");
        error.to_string()
    };
    let euler = || Request { sampler: Some(SamplerKind::Euler.into()), ..request() };
    assert!(message(Request { eta: Some(0.5), ..euler() }).contains("--eta is 0.5, expected none with euler"));
    let sigmas = || Some(vec![10.0, 1.0, 0.0]);
    assert!(message(Request { sigmas: sigmas(), ..request() }).contains("--steps is 3, expected none, or 2"));
    assert!(message(Request { sigmas: Some(vec![1.0, 2.0]), steps: None, ..request() }).contains("--sigmas is 1,2"));
    assert!(message(Request { mimic_scale: Some(5.0), ..request() }).contains("--dynamic-thresholding too"));
    assert!(message(Request { guidance_start: Some(-0.1), ..request() }).contains("--guidance-start is -0.1"));
    assert!(message(Request { seed_resize_from: Some((30, 32)), ..request() }).contains("--seed-resize-from is 30"));
    let job = Request { sigmas: sigmas(), steps: None, ..euler() }.resolve(engine.model()).unwrap();
    assert_eq!(job.steps, 2);
}
