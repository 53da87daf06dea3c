//! Sigma schedules, and samplers before every step, compared with k-diffusion and, where it has none, a second
//! implementation: `fixtures/kdiffusion.json`, made by `fixtures/kdiffusion.py`.

use candle_core::Tensor;
use kiln_scheduler::{
    ImageNoise, ModelOutput, Result, SamplerKind, SamplerOptions, Schedule, SchedulerConfig, SigmaSchedule, Stepper,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Fixture {
    schedules: Vec<Levels>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Levels {
    schedule: SigmaSchedule,
    steps: usize,
    sigmas: Vec<f64>,
}

#[derive(Deserialize)]
struct Case {
    sampler: SamplerKind,
    options: SamplerOptions,
    sigmas: Vec<f64>,
    /// Before each step and at the end: the sum of absolute values, then the picked values. With churn, only the end.
    latents: Vec<Vec<f64>>,
}

const SHAPE: (usize, usize, usize) = (3, 6, 7);
const PICKED: [usize; 5] = [0, 17, 125, 126, 251];
const SD1: &str = r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}"#;

/// Relative to the latents' mean size: the difference of two summation orders in f32. k-diffusion's third order
/// computes small differences in f32, and `dpmpp_sde` computes the noise levels of its noise through logarithms in f32.
/// Where their last bit differs, a millionth of the path is missing, which is a thousandth of its size.
fn tolerance(sampler: SamplerKind) -> f64 {
    match sampler {
        SamplerKind::Dpmpp3mSde => 1e-4,
        SamplerKind::DpmppSde => 1e-3,
        _ => 2e-5,
    }
}

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("../fixtures/kdiffusion.json")).unwrap()
}

fn model(x: &Tensor, t: f64) -> Result<ModelOutput> {
    let wave = x.affine(1.7, 0.0)?.sin()?.affine(0.6, 0.05 * (t / 100.0).cos())?;
    let output = (wave + x.affine(0.1, 0.0)?)?;
    let unconditional = Some(x.affine(1.3, 0.0)?.sin()?.affine(0.5, 0.0)?);
    Ok(ModelOutput { unconditional, ..output.into() })
}

#[test]
fn noise_levels_match_k_diffusion() {
    for Levels { schedule, steps, sigmas } in fixture().schedules {
        let config = SchedulerConfig::from_json(SD1).unwrap();
        let settings = config.resolve(SamplerKind::Euler, schedule).unwrap();
        let rho = (schedule == SigmaSchedule::Polyexponential).then_some(1.7);
        let settings = settings.with_options(&SamplerOptions { rho, ..Default::default() }).unwrap();
        // One step of the configuration's own schedule visits only the timestep 0, and diffusers computes the levels of
        // these schedules between the visited ones.
        let within_visited =
            [SigmaSchedule::Karras, SigmaSchedule::Exponential, SigmaSchedule::BetaSigmas].contains(&schedule);
        if steps == 1 && within_visited {
            continue;
        }
        let schedule = Schedule::new(&settings, steps).unwrap();
        assert_eq!(schedule.points().len(), sigmas.len(), "{:?}", settings.sigmas);
        for (point, expected) in schedule.points().iter().zip(&sigmas) {
            let error = (point.sigma / expected - 1.0).abs();
            assert!(error < 3e-6, "{:?}, {steps} steps: {} for {expected}", settings.sigmas, point.sigma);
        }
    }
}

fn error(case: &Case) -> Result<f64> {
    let settings = SchedulerConfig::from_json(SD1)?.resolve(case.sampler, SigmaSchedule::Default)?;
    let options = SamplerOptions { sigmas: Some(case.sigmas.clone()), ..case.options.clone() };
    let schedule = Schedule::new(&settings.with_options(&options)?, 1)?;

    let mut noise = ImageNoise::new(1234, 2);
    let mut latents = noise.latents(SHAPE)?;
    // The fixture's latents are the image plus noise. A sampler that preserves the variance has them scaled.
    let first = case.sigmas[0];
    let unit = schedule.points()[0].alpha;
    latents = (latents * (first * unit))?;
    let mut stepper = Stepper::new(&schedule);
    let mut rows = Vec::new();
    let keep = |latents: &Tensor, alpha: f64, rows: &mut Vec<Vec<f32>>| -> Result<()> {
        rows.push((latents * (1.0 / alpha))?.flatten_all()?.to_vec1()?);
        Ok(())
    };
    while let Some(point) = stepper.point() {
        if schedule.step_starts().contains(&stepper.index()) {
            keep(&latents, point.alpha, &mut rows)?;
        }
        latents = stepper.step(&latents, &mut model, &mut noise)?;
    }
    keep(&latents, 1.0, &mut rows)?;
    if case.latents.len() == 1 {
        rows.drain(..rows.len() - 1);
    }
    assert_eq!(rows.len(), case.latents.len());
    let mut worst = 0f64;
    for (values, row) in rows.iter().zip(&case.latents) {
        let scale = row[0] / values.len() as f64;
        let sum: f64 = values.iter().map(|v| f64::from(v.abs())).sum();
        worst = worst.max((sum - row[0]).abs() / row[0]);
        for (index, expected) in PICKED.into_iter().zip(&row[1..]) {
            worst = worst.max((f64::from(values[index]) - expected).abs() / scale);
        }
    }
    Ok(worst)
}

#[test]
fn every_step_is_k_diffusions() {
    let mut failures = Vec::new();
    for case in fixture().cases {
        let error = error(&case).unwrap();
        let SamplerOptions { eta, s_churn, s_noise, .. } = case.options;
        let steps = case.sigmas.len() - 1;
        let what = format!("{} {steps} steps, {eta:?}, {s_churn:?}, {s_noise:?}: {error:.1e}", case.sampler);
        println!("{what}");
        if error.is_nan() || error > tolerance(case.sampler) {
            failures.push(what);
        }
    }
    assert!(failures.is_empty(), "{} cases are off:\n{}", failures.len(), failures.join("\n"));
}
