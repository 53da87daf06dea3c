//! Samplers and schedules of AUTOMATIC1111's web UI and ComfyUI: `fixtures/programs.json`, made by
//! `fixtures/programs.py` from k-diffusion's and ComfyUI's functions.

use candle_core::{Device, Tensor};
use kiln_scheduler::{
    ImageNoise, ModelOutput, Result, SamplerKind, SamplerOptions, Schedule, SchedulerConfig, SigmaSchedule, Stepper,
};
use kiln_testkit::Parity;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    program: String,
    sampler: SamplerKind,
    schedule: SigmaSchedule,
    steps: usize,
    options: SamplerOptions,
    /// The levels with the end; `None` on timesteps.
    sigmas: Option<Vec<f64>>,
    init_noise_sigma: f64,
    timesteps: Vec<f64>,
    /// Whether a level is half-way between two timesteps, so that rounding decides which one ComfyUI's model gets.
    tied: bool,
    /// Final latents: the sum of absolute values, then the picked values.
    latents: Vec<f64>,
}

const SHAPE: (usize, usize, usize) = (3, 6, 7);
const PICKED: [usize; 5] = [0, 17, 125, 126, 251];
/// Configurations of SD1.5 and of SDXL. Neither program reads their spacing.
const FOLDERS: [&str; 2] = [
    r#"{"_class_name": "PNDMScheduler", "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear",
        "set_alpha_to_one": false, "skip_prk_steps": true, "steps_offset": 1, "clip_sample": false}"#,
    r#"{"_class_name": "EulerDiscreteScheduler", "beta_start": 0.00085, "beta_end": 0.012, "steps_offset": 1,
        "beta_schedule": "scaled_linear", "timestep_spacing": "leading", "set_alpha_to_one": false}"#,
];

fn model(x: &Tensor, t: f64) -> Result<ModelOutput> {
    let wave = x.affine(1.7, 0.0)?.sin()?.affine(0.6, 0.05 * (t / 100.0).cos())?;
    let unconditional = Some(x.affine(1.3, 0.0)?.sin()?.affine(0.5, 0.0)?);
    Ok(ModelOutput { unconditional, ..(wave + x.affine(0.1, 0.0)?)?.into() })
}

/// Relative to the mean size of the latents: the rounding errors of f32 in both programs. The stochastic samplers get
/// noise at levels that both sides compute in f32: a last bit of a level is a millionth of the Brownian path, and a
/// thousandth of its size.
fn bound(case: &Case) -> f64 {
    match case.sampler {
        SamplerKind::DpmppSde => 1e-2,
        SamplerKind::Dpmpp2mSde | SamplerKind::Dpmpp2mSdeHeun | SamplerKind::Dpmpp3mSde => 3e-4,
        _ => 1e-4,
    }
}

fn tensor(values: &[f64]) -> Tensor {
    let values: Vec<f32> = values.iter().map(|&value| value as f32).collect();
    Tensor::from_vec(values.clone(), values.len(), &Device::Cpu).unwrap()
}

fn schedule(case: &Case, folder: &str) -> Result<Schedule> {
    let convention = case.program.parse()?;
    let options = SamplerOptions { convention, ..case.options.clone() };
    let settings = SchedulerConfig::from_json(folder)?.resolve(case.sampler, case.schedule)?;
    Schedule::new(&settings.with_options(&options)?, case.steps)
}

fn name(program: &str) -> &'static str {
    if program == "a1111" { "AUTOMATIC1111" } else { "ComfyUI" }
}

#[test]
fn schedules_and_latents_are_the_programs() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../fixtures/programs.json")).unwrap();
    assert!(cases.len() > 200);
    for (case, folder) in cases.iter().flat_map(|case| FOLDERS.map(|folder| (case, folder))) {
        let what = format!("{} {} {} {} {:?}", case.program, case.sampler, case.schedule, case.steps, case.options);
        let schedule = schedule(case, folder).unwrap_or_else(|error| panic!("{what}: {error}"));
        let parity = Parity::new("program", name(&case.program));
        println!("{what}");
        if let Some(sigmas) = &case.sigmas {
            let starts = schedule.step_starts().iter().map(|&start| schedule.arrivals()[start]);
            let mut found: Vec<f64> = starts.map(|point| point.sigma / point.alpha).collect();
            let mut expected = sigmas.clone();
            let end = expected.pop().unwrap();
            assert_eq!(found.len(), expected.len(), "{what}: {found:?}");
            // Each level has its own relative error, because the last ones are small.
            for (found, expected) in found.iter().zip(&expected) {
                assert!((found / expected - 1.0).abs() < 5e-6, "{what}: level {found} for {expected}");
            }
            found.push(end);
            expected.push(end);
            let levels = if case.options == SamplerOptions::default() { "levels" } else { "levels with options" };
            parity.check(&format!("{levels} {}", case.schedule), &tensor(&found), &tensor(&expected), 1e-5);
        }
        // Where the latents preserve the variance, they are the program's times the signal's factor.
        let unit = if case.sigmas.is_some() { schedule.points()[0].alpha } else { 1.0 };
        let error = (schedule.init_noise_sigma() / unit / case.init_noise_sigma - 1.0).abs();
        assert!(error < 2e-6, "{what}: first latents {} for {}", schedule.init_noise_sigma(), case.init_noise_sigma);

        let (mut latents, mut noise, mut asked) = (Vec::new(), ImageNoise::new(1234, 2), Vec::new());
        let mut x = (noise.latents(SHAPE).unwrap() * schedule.init_noise_sigma()).unwrap();
        let mut stepper = Stepper::new(&schedule);
        while stepper.point().is_some() {
            let mut model = |x: &Tensor, t: f64| {
                asked.push(t);
                model(x, t)
            };
            x = stepper.step(&x, &mut model, &mut noise).unwrap();
        }
        assert_eq!(asked.len(), case.timesteps.len(), "{what}: {asked:?} for {:?}", case.timesteps);
        if case.tied {
            continue;
        }
        for (found, expected) in asked.iter().zip(&case.timesteps) {
            assert!((found - expected).abs() < 2e-2, "{what}: timestep {found} for {expected}");
        }
        let values: Vec<f32> = x.flatten_all().unwrap().to_vec1().unwrap();
        latents.push(values.iter().map(|value| f64::from(value.abs())).sum::<f64>());
        latents.extend(PICKED.iter().map(|&index| f64::from(values[index])));
        let scale = case.latents[0] / values.len() as f64;
        let stage = format!("latents {}", case.sampler.label());
        let in_scale = |latents: &[f64]| tensor(&latents[1..].iter().map(|value| value / scale).collect::<Vec<_>>());
        assert!((latents[0] / case.latents[0] - 1.0).abs() < bound(case), "{what}: {latents:?} for {:?}", case.latents);
        parity.check(&stage, &in_scale(&latents), &in_scale(&case.latents), bound(case));
    }
}
