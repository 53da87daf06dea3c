//! Every sampler compared with diffusers, after every step: `fixtures/steps.json`, made by `fixtures/steps.py`.

use candle_core::{Device, Tensor};
use kiln_scheduler::{
    Error, ImageNoise, NoiseSource, Result, SamplerKind, Schedule, SchedulerConfig, SigmaSchedule, Stepper,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    sampler: String,
    config: serde_json::Value,
    steps: usize,
    karras: bool,
    start: usize,
    eta: f64,
    timesteps: Vec<f64>,
    sigmas: Option<Vec<f64>>,
    init_noise_sigma: f64,
    /// Before the first step and after each: the sum of absolute values, then the picked values.
    latents: Vec<Vec<f64>>,
}

const SHAPE: (usize, usize, usize) = (3, 6, 7);
const PICKED: [usize; 5] = [0, 17, 125, 126, 251];

/// Relative error of timesteps and sigmas: a few rounding errors of f32.
const SCHEDULE_TOLERANCE: f64 = 1e-6;
/// Error of the latents relative to their mean size: f32 in another order of operations, over at most 50 steps. One
/// rounding error at the size of the first latents is added, which Euler's first step subtracts (with zero terminal SNR
/// that is 4096).
const LATENT_TOLERANCE: f64 = 2e-5;

/// The additional tolerance of two samplers, because diffusers computes small differences in f32: `dpm2_a` of two noise
/// levels, and `dpmpp_sde` through logarithms to the levels of its noise. Where the last bit of those differs, a
/// millionth of the Brownian path is missing, which is a thousandth of its size.
fn more_tolerance(sampler: SamplerKind) -> f64 {
    match sampler {
        SamplerKind::Dpm2A => 1e-3,
        SamplerKind::DpmppSde => 5e-3,
        _ => 0.0,
    }
}

fn model(x: &Tensor, t: f64) -> Result<Tensor> {
    let wave = x.affine(1.7, 0.0)?.sin()?.affine(0.6, 0.05 * (t / 100.0).cos())?;
    Ok((wave + x.affine(0.1, 0.0)?)?)
}

fn relative(found: f64, expected: f64) -> f64 {
    (found - expected).abs() / expected.abs().max(1e-3)
}

/// The largest relative error of the schedule, and the largest of the latents.
fn errors(case: &Case) -> Result<(f64, f64)> {
    let config = SchedulerConfig::from_json(&case.config.to_string())?;
    let spacing = if case.karras { SigmaSchedule::Karras } else { SigmaSchedule::Default };
    let mut settings = config.resolve(case.sampler.parse()?, spacing)?;
    if matches!(case.sampler.as_str(), "ddim" | "tcd") {
        settings.eta = case.eta;
    }
    let schedule = Schedule::new(&settings, case.steps)?.starting_at(case.start)?;

    assert_eq!(schedule.timesteps().len(), case.timesteps.len());
    let mut schedule_error = relative(schedule.init_noise_sigma(), case.init_noise_sigma);
    for (index, (point, &timestep)) in schedule.points().iter().zip(&case.timesteps).enumerate() {
        if case.sampler == "dpm2_a" && !schedule.step_starts().contains(&index) {
            continue;
        }
        schedule_error = schedule_error.max(relative(point.timestep, timestep));
    }
    // diffusers lists the next level where the model is evaluated at the midpoint of a step.
    let sigmas = case.sigmas.as_ref().filter(|_| !matches!(case.sampler.as_str(), "dpm2" | "dpm2_a" | "dpmpp_sde"));
    for (point, &sigma) in schedule.points().iter().zip(sigmas.into_iter().flatten()) {
        schedule_error = schedule_error.max(relative(point.sigma / point.alpha, sigma));
    }

    let mut noise = ImageNoise::new(1234, 2);
    let unit = noise.latents(SHAPE)?;
    let mut latents = if case.start > 0 {
        let wave: Vec<f32> = (0..252).map(|i| (0.5 * f64::from(i).cos()) as f32).collect();
        schedule.add_noise(&Tensor::from_vec(wave, unit.shape(), &Device::Cpu)?, &unit, case.start)?
    } else {
        (unit * schedule.init_noise_sigma())?
    };
    let mut stepper = Stepper::new(&schedule);
    let mut latent_error = 0f64;
    for (step, row) in case.latents.iter().enumerate() {
        if step > 0 {
            latents = stepper.step(&latents, &mut model, &mut noise)?;
        }
        let values: Vec<f32> = latents.flatten_all()?.to_vec1()?;
        let sum: f64 = values.iter().map(|v| f64::from(v.abs())).sum();
        let scale = row[0] / values.len() as f64;
        latent_error = latent_error.max((sum - row[0]).abs() / row[0]);
        for (index, expected) in PICKED.into_iter().zip(&row[1..]) {
            latent_error = latent_error.max((f64::from(values[index]) - expected).abs() / scale);
        }
    }
    assert_eq!(stepper.remaining(), 0);
    let finished = stepper.step(&latents, &mut model, &mut noise as &mut dyn NoiseSource);
    assert!(matches!(finished, Err(Error::Finished { .. })));
    Ok((schedule_error, latent_error))
}

/// Whether diffusers starts one timestep too low, at 998: it truncates 998.99999994, which NumPy 2 computes for the
/// last timestep and NumPy 1 does not. `dpm_solver_sde.rs` tests these schedules as they are intended.
fn is_accident(case: &Case) -> bool {
    let is_cut = ["use_exponential_sigmas", "use_beta_sigmas"].iter().any(|key| case.config[key] == true);
    is_cut && case.timesteps[0] == 998.0
}

#[test]
fn every_step_is_diffusers() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("../fixtures/steps.json")).unwrap();
    let mut failures = Vec::new();
    for kind in SamplerKind::ALL {
        let (mut worst_schedule, mut worst_latents, mut count) = (0f64, 0f64, 0);
        for case in cases.iter().filter(|case| case.sampler == kind.id() && !is_accident(case)) {
            let what =
                format!("{kind}, {} steps from {}, karras {}: {}", case.steps, case.start, case.karras, case.config);
            let (schedule, latents) = errors(case).unwrap_or_else(|error| panic!("{what}: {error}"));
            let tolerance = LATENT_TOLERANCE + f64::from(f32::EPSILON) * case.init_noise_sigma + more_tolerance(kind);
            if !(schedule <= SCHEDULE_TOLERANCE && latents <= tolerance) {
                failures.push(format!("schedule {schedule:.1e}, latents {latents:.1e}: {what}"));
            }
            (worst_schedule, worst_latents) = (worst_schedule.max(schedule), worst_latents.max(latents));
            count += 1;
        }
        if count == 0 {
            continue; // from k-diffusion: tests/kdiffusion.rs
        }
        println!("{kind:8} {count:3} cases: schedule {worst_schedule:.1e}, latents {worst_latents:.1e}");
    }
    assert!(failures.is_empty(), "{} cases are off:\n{}", failures.len(), failures.join("\n"));
}
