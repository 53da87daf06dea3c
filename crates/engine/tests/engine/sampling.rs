//! Samplers, sigma schedules, guidance and seeds in whole runs of a tiny model. The scheduler's own tests check the
//! formulas; these tests check that all options take effect.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_core::Tensor;
use kiln_engine::{Engine, ModelFolder, Request, Rng, SamplerKind, SigmaSchedule};
use kiln_scheduler::ImageNoise;
use kiln_testkit::{fixtures, repository, similarity};

use crate::support::{cpu, images, latents, load, tiny};

/// The stored results for each `{sampler} {schedule}`; see `measure_samplers`.
const STORED: &str = "crates/engine/tests/engine/samplers.json";
/// The maximum error of a value relative to the mean absolute latent: three steps amplify f32 differences between CPUs
/// to less than a tenth of this.
const TOLERANCE: f64 = 1e-3;

fn engine() -> Engine {
    tiny("sd1", &cpu())
}

fn request() -> Request {
    crate::support::request("a pear", (32, 32), 3, 3)
}

fn pixels(engine: &mut Engine, request: &Request) -> Vec<Vec<u8>> {
    crate::support::pixels(engine, request)
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

/// diffusers 0.42.1, `StableDiffusionPipeline.__init__`: `steps_offset` becomes 1 and `clip_sample` false. The model's
/// own configuration has both values, so the images are the same. `StableDiffusionXLPipeline` has no correction.
#[test]
fn old_scheduler_configurations_are_corrected() {
    let betas = r#""_class_name": "DDIMScheduler", "beta_start": 0.00085, "beta_end": 0.012, "set_alpha_to_one": false,
        "beta_schedule": "scaled_linear""#;
    let contradicts = format!("{{{betas}, \"steps_offset\": 0, \"clip_sample\": true}}");
    let request = Request { sampler: Some(SamplerKind::Ddim.into()), ..request() };
    let expected = pixels(&mut engine(), &request);
    for config in [&format!("{{{betas}}}"), &contradicts] {
        let folder = with_scheduler("sd1", config);
        assert!(pixels(&mut load(folder.path(), &cpu()), &request) == expected, "{config}");
    }
    let folder = with_scheduler("sdxl", &contradicts);
    let found = ModelFolder::open(folder.path()).unwrap();
    let found = found.scheduler_config();
    assert_eq!((found.steps_offset, found.clip_sample), (Some(0), Some(true)));
}

/// Every sampler on three schedules, and every schedule with three samplers.
fn pairs() -> Vec<(SamplerKind, SigmaSchedule)> {
    let schedules = [SigmaSchedule::Default, SigmaSchedule::Karras, SigmaSchedule::KlOptimal];
    let samplers = [SamplerKind::Ddim, SamplerKind::EulerA, SamplerKind::Deis];
    let of_sampler = SamplerKind::ALL.into_iter().flat_map(|kind| schedules.map(|schedule| (kind, schedule)));
    let of_schedule = SigmaSchedule::ALL.into_iter().flat_map(|schedule| samplers.map(|kind| (kind, schedule)));
    of_sampler.chain(of_schedule).collect()
}

/// Statistics of latents: the mean, the mean absolute value, and a position-dependent sum.
fn summary(latents: &Tensor) -> [f64; 3] {
    let values: Vec<f32> = latents.flatten_all().unwrap().to_vec1().unwrap();
    let mean = |term: &dyn Fn(usize, f64) -> f64| {
        values.iter().enumerate().map(|(i, &value)| term(i, f64::from(value))).sum::<f64>() / values.len() as f64
    };
    [mean(&|_, x| x), mean(&|_, x| x.abs()), mean(&|i, x| x * (i as f64).cos())]
}

fn run(engine: &mut Engine, kind: SamplerKind, scheduler: SigmaSchedule) -> Tensor {
    latents(&images(engine, &Request { sampler: Some(kind.into()), scheduler, ..request() }))
}

/// The scheduler's own tests compare samplers with their sources. Here each sampler gets its network, its noise and its
/// schedule from the engine, and must reproduce the stored latents.
#[test]
fn every_sampler_reproduces_its_latents_on_every_schedule() {
    let text = std::fs::read_to_string(repository().join(STORED)).unwrap();
    let mut stored: BTreeMap<String, [f64; 3]> = serde_json::from_str(&text).unwrap();
    let start = ImageNoise::new(3, 1).latents((4, 4, 4)).unwrap();
    let mut engine = engine();
    for (kind, schedule) in pairs() {
        let found = run(&mut engine, kind, schedule);
        let name = format!("{kind} {schedule}");
        let values = summary(&found);
        assert!(values.iter().all(|value| value.is_finite()), "{name}: {values:?}");
        let cosine = similarity(&found, &start).cosine;
        assert!(cosine < 0.95, "{name}: the latents are the noise at the start, cosine {cosine}");
        let expected = stored.get(&name).unwrap_or_else(|| panic!("{STORED} has no `{name}`"));
        for (found, expected_value) in values.iter().zip(expected) {
            let off = (found - expected_value).abs() / expected[1];
            assert!(off < TOLERANCE, "{name}: {values:?}, expected {expected:?}");
        }
    }
    let checked: BTreeSet<String> = pairs().iter().map(|(kind, schedule)| format!("{kind} {schedule}")).collect();
    stored.retain(|name, _| !checked.contains(name));
    assert!(stored.is_empty(), "{STORED} has values that nothing was compared with: {stored:?}");
}

/// Writes the file of stored values: for a new sampler, or after an intended change.
/// `cargo test -p kiln-engine --release --test engine -- --ignored measure_samplers`
#[test]
#[ignore = "writes crates/engine/tests/engine/samplers.json"]
fn measure_samplers() {
    let mut engine = engine();
    let rows: BTreeMap<String, [f64; 3]> = pairs()
        .into_iter()
        .map(|(kind, schedule)| (format!("{kind} {schedule}"), summary(&run(&mut engine, kind, schedule))))
        .collect();
    let row = |(name, [a, b, c]): (&String, &[f64; 3])| format!("  \"{name}\": [{a:.6}, {b:.6}, {c:.6}]");
    let text = rows.iter().map(row).collect::<Vec<_>>().join(",\n");
    std::fs::write(repository().join(STORED), format!("{{\n{text}\n}}\n")).unwrap();
}

#[test]
fn guidance_may_end() {
    let mut engine = engine();
    let mut run = |request: Request| pixels(&mut engine, &request);
    let guided = run(request());
    let unguided = run(Request { cfg_scale: Some(1.0), ..request() });
    assert_ne!(guided, unguided);
    assert_eq!(run(Request { guidance_end: Some(0.0), ..request() }), unguided);
    let half = run(Request { guidance_end: Some(0.5), ..request() });
    assert!(half != guided && half != unguided);
    // Combining both halves outside of the step is the same guidance.
    let rescaled = run(Request { guidance_rescale: Some(1e-12), ..request() });
    assert_eq!((guided.len(), guided[0].len()), (rescaled.len(), rescaled[0].len()));
    let off = guided[0].iter().zip(&rescaled[0]).map(|(a, b)| a.abs_diff(*b)).max().unwrap();
    assert!(off <= 1, "{off} levels");
    assert_ne!(run(Request { guidance_rescale: Some(0.7), ..request() }), guided);
    let thresholded = Request { cfg_scale: Some(30.0), dynamic_thresholding: Some(0.99), ..request() };
    assert_ne!(run(thresholded), run(Request { cfg_scale: Some(30.0), ..request() }));
}

#[test]
fn seeds_other_than_the_first() {
    let mut engine = engine();
    let mut run = |request: Request| pixels(&mut engine, &request);
    let first = run(request());
    assert_ne!(run(Request { rng: Rng::Cuda, ..request() }), first);
    assert_ne!(run(Request { seed_resize_from: Some((16, 24)), ..request() }), first);
    let varied = |strength| Request { subseed: Some(8), subseed_strength: Some(strength), ..request() };
    assert_eq!(run(varied(0.0)), first);
    assert_ne!(run(varied(0.1)), first);
    // Two variations in a batch have one seed, and their subseeds increase.
    let two = run(Request { batch_size: Some(2), ..varied(0.1) });
    assert_eq!(two[0], run(varied(0.1))[0]);
    assert_eq!(two[1], run(Request { subseed: Some(9), ..varied(0.1) })[0]);
    let ancestral = Request { sampler: Some(SamplerKind::EulerA.into()), ..request() };
    assert_ne!(run(ancestral.clone()), run(Request { ensd: Some(31337), ..ancestral }));
}

#[test]
fn unsupported_sampler_options_are_refused() {
    let engine = engine();
    let message = |request: Request| {
        let error = request.resolve(engine.model()).unwrap_err();
        assert!(error.is_usage(), "{error}");
        error.to_string()
    };
    let euler = || Request { sampler: Some(SamplerKind::Euler.into()), ..request() };
    assert!(message(Request { eta: Some(0.5), ..euler() }).contains("`eta` is 0.5, expected none with euler"));
    let sigmas = || Some(vec![10.0, 1.0, 0.0]);
    assert!(message(Request { sigmas: sigmas(), ..request() }).contains("`steps` is 3, expected none, or 2"));
    assert!(message(Request { sigmas: Some(vec![1.0, 2.0]), steps: None, ..request() }).contains("`sigmas` is 1,2"));
    assert!(message(Request { mimic_scale: Some(5.0), ..request() }).contains("`dynamic_thresholding` too"));
    assert!(message(Request { guidance_start: Some(-0.1), ..request() }).contains("`guidance_start` is -0.1"));
    assert!(message(Request { seed_resize_from: Some((30, 32)), ..request() }).contains("`seed_resize_from` is 30"));
    let job = Request { sigmas: sigmas(), steps: None, ..euler() }.resolve(engine.model()).unwrap();
    assert_eq!(job.steps, 2);
}
