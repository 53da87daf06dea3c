//! The behavior that callers rely on, besides the numbers.

use candle_core::{DType, Device, Tensor};
use kiln_scheduler::{
    Error, FinalSigma, ImageNoise, ModelOutput, Prediction, Result, SamplerKind, SamplerOptions, Schedule,
    SchedulerConfig, SigmaGrid, SigmaSchedule, Spacing, Stepper, ThresholdMode, sample,
};
use std::ops::ControlFlow;

/// The scheduler configuration of SD1.5.
const SD1: &str = r#"{
    "_class_name": "PNDMScheduler", "_diffusers_version": "0.6.0", "beta_end": 0.012, "beta_schedule": "scaled_linear",
    "beta_start": 0.00085, "num_train_timesteps": 1000, "set_alpha_to_one": false, "skip_prk_steps": true,
    "steps_offset": 1, "trained_betas": null, "clip_sample": false
}"#;

fn schedule(json: &str, kind: SamplerKind, steps: usize) -> Result<Schedule> {
    Schedule::new(&SchedulerConfig::from_json(json)?.resolve(kind, SigmaSchedule::Default)?, steps)
}

fn refusal(json: &str, kind: SamplerKind, spacing: SigmaSchedule) -> String {
    SchedulerConfig::from_json(json).unwrap().resolve(kind, spacing).unwrap_err().to_string()
}

/// `s = Class(steps_offset=1, ...); s.set_timesteps(5); s.timesteps`
#[test]
fn timesteps_are_diffusers() -> Result<()> {
    let offset = r#"{"steps_offset": 1, "skip_prk_steps": true}"#;
    assert_eq!(schedule(offset, SamplerKind::Ddim, 5)?.timesteps(), [801.0, 601.0, 401.0, 201.0, 1.0]);
    assert_eq!(schedule(offset, SamplerKind::Pndm, 5)?.timesteps(), [801.0, 601.0, 601.0, 401.0, 201.0, 1.0]);
    assert_eq!(schedule(offset, SamplerKind::Euler, 5)?.timesteps(), [999.0, 749.25, 499.5, 249.75, 0.0]);
    assert_eq!(schedule(offset, SamplerKind::Dpmpp2m, 5)?.timesteps(), [999.0, 799.0, 599.0, 400.0, 200.0]);
    let twice = [999.0, 499.5, 499.5, 0.0, 0.0];
    assert_eq!(schedule(offset, SamplerKind::Heun, 3)?.timesteps(), twice);
    let runge_kutta = [750.0, 625.0, 625.0, 500.0, 500.0, 375.0, 375.0, 250.0, 250.0, 125.0, 125.0, 0.0, 0.0];
    assert_eq!(schedule("{}", SamplerKind::Pndm, 4)?.timesteps(), runge_kutta);
    Ok(())
}

#[test]
fn another_sampler_gets_the_keys_that_are_there_and_its_own_defaults() -> Result<()> {
    let config = SchedulerConfig::from_json(SD1)?;
    assert_eq!(config.sampler()?, SamplerKind::Pndm);
    let resolve = |kind| config.resolve(kind, SigmaSchedule::Default);
    assert_eq!(resolve(SamplerKind::Pndm)?.spacing, Spacing::Leading);
    let euler = resolve(SamplerKind::Euler)?;
    assert_eq!((euler.spacing, euler.steps_offset, euler.final_sigma), (Spacing::Linspace, 1, FinalSigma::Zero));
    assert_eq!((euler.prediction, euler.sigmas), (Prediction::Epsilon, SigmaGrid::Training));
    assert!(!resolve(SamplerKind::Ddim)?.set_alpha_to_one);
    let bare = SchedulerConfig::default();
    assert!(bare.resolve(SamplerKind::Ddim, SigmaSchedule::Default)?.set_alpha_to_one);
    assert_eq!(bare.resolve(SamplerKind::Ddim, SigmaSchedule::Default)?.threshold, ThresholdMode::Clip(1.0));
    assert_eq!(bare.resolve(SamplerKind::Heun, SigmaSchedule::Default)?.threshold, ThresholdMode::None);
    Ok(())
}

#[test]
fn karras_sigmas() -> Result<()> {
    for kind in SamplerKind::ALL {
        let resolved = SchedulerConfig::from_json(SD1)?.resolve(kind, SigmaSchedule::Karras)?;
        assert_eq!(resolved.sigmas, SigmaGrid::Karras);
    }
    // diffusers' class does not have the key. This crate accepts the explicit choice.
    let asked = r#"{"use_karras_sigmas": true}"#;
    assert_eq!(schedule(asked, SamplerKind::Euler, 5)?.config().sigmas, SigmaGrid::Karras);
    assert_eq!(schedule(asked, SamplerKind::EulerA, 5)?.config().sigmas, SigmaGrid::Training);
    Ok(())
}

#[test]
fn unsupported_values_are_named() {
    for (json, kind, named) in [
        (r#"{"beta_schedule": "exp"}"#, SamplerKind::Heun, "beta_schedule = exp"),
        (r#"{"timestep_spacing": "even"}"#, SamplerKind::Ddim, "timestep_spacing = even"),
        (r#"{"prediction_type": "flow_prediction"}"#, SamplerKind::UniPc, "prediction_type = flow_prediction"),
        (r#"{"prediction_type": "sample"}"#, SamplerKind::Pndm, "prediction_type = sample"),
        (r#"{"algorithm_type": "sde-dpmsolver++"}"#, SamplerKind::Dpmpp2m, "algorithm_type = sde-dpmsolver++"),
        (r#"{"solver_order": 3}"#, SamplerKind::Dpmpp2m, "solver_order = 3"),
        (r#"{"use_flow_sigmas": true}"#, SamplerKind::Euler, "use_flow_sigmas = true"),
        (r#"{"variance_type": "learned_range"}"#, SamplerKind::Ddpm, "variance_type = learned_range"),
        (r#"{"trained_betas": [0.1]}"#, SamplerKind::Ddpm, "trained_betas = 1 values"),
        (r#"{"num_train_timesteps": 1}"#, SamplerKind::Ddpm, "num_train_timesteps = 1"),
        (r#"{"num_train_timesteps": 1000000000000}"#, SamplerKind::Euler, "num_train_timesteps = 1000000000000"),
        (r#"{"steps_offset": -1}"#, SamplerKind::Ddim, "steps_offset = -1"),
        (r#"{"clip_sample_range": 0}"#, SamplerKind::Ddim, "clip_sample_range = 0"),
        (r#"{"beta_end": 1.5}"#, SamplerKind::Ddpm, "beta_end = 1.5"),
    ] {
        let message = refusal(json, kind, SigmaSchedule::Default);
        assert!(message.contains(named), "{message}");
    }
    // A key that the sampler's class does not have is ignored, as in diffusers.
    let config =
        SchedulerConfig::from_json(r#"{"solver_order": 9, "solver_type": "x", "variance_type": "y"}"#).unwrap();
    assert!(config.resolve(SamplerKind::Ddim, SigmaSchedule::Default).is_ok());
}

#[test]
fn step_counts_are_bounded() {
    for steps in [0, 1001] {
        let error = schedule("{}", SamplerKind::Euler, steps).unwrap_err();
        assert!(matches!(error, Error::Steps { min: 1, max: 1000, .. }), "{error}");
    }
    assert!(matches!(schedule("{}", SamplerKind::Pndm, 3), Err(Error::Steps { min: 4, .. })));
    assert!(matches!(schedule("{}", SamplerKind::Dpmpp2m, 1000), Err(Error::TooFine { .. })));
    assert!(matches!(schedule(SD1, SamplerKind::Ddim, 1000), Err(Error::Timestep { timestep: 1000, .. })));
    for kind in SamplerKind::ALL {
        // A consistency model was distilled on 50 timesteps.
        let most = if matches!(kind, SamplerKind::Lcm | SamplerKind::Tcd) { 50 } else { 100 };
        for steps in 1..=most {
            let schedule = schedule(SD1, kind, steps).unwrap();
            assert!(schedule.points().iter().all(|point| (0.0..1000.0).contains(&point.timestep)));
        }
    }
}

#[test]
fn strength() -> Result<()> {
    let ddim = schedule(SD1, SamplerKind::Ddim, 20)?;
    assert_eq!([0.75, 1.0, 0.0, 0.33].map(|strength| ddim.start_for_strength(strength)), [5, 0, 20, 14]);
    assert!(matches!(ddim.starting_at(20), Err(Error::Start { index: 20, len: 20, .. })));
    assert_eq!(ddim.starting_at(5)?.start(), 5);
    let heun = schedule(SD1, SamplerKind::Heun, 20)?;
    assert_eq!(heun.start_for_strength(0.75), 10);
    assert!(matches!(heun.starting_at(3), Err(Error::Start { .. })));
    assert!(schedule("{}", SamplerKind::Pndm, 10)?.starting_at(2).is_err());
    Ok(())
}

/// An error type of a caller.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("out of memory at {0}")]
    OutOfMemory(f64),
    #[error(transparent)]
    Scheduler(#[from] Error),
}

#[test]
fn model_errors_are_returned_unchanged() -> Result<()> {
    let schedule = schedule(SD1, SamplerKind::Ddim, 5)?;
    let latents = Tensor::zeros((1, 4, 4, 4), DType::F32, &Device::Cpu)?;
    let model = |x: &Tensor, t: f64| if t < 500.0 { Err(Failure::OutOfMemory(t)) } else { Ok(x.clone()) };
    let mut seen = Vec::new();
    let result = sample(&schedule, model, &latents, &mut ImageNoise::new(0, 1), &mut |info| {
        seen.push((info.index, info.total, info.timestep));
        ControlFlow::Continue(())
    });
    assert!(matches!(result, Err(Failure::OutOfMemory(t)) if t == 401.0), "{result:?}");
    assert_eq!(seen, [(0, 5, 801.0), (1, 5, 601.0)]);
    Ok(())
}

#[test]
fn a_failed_step_can_be_retried() -> Result<()> {
    for kind in SamplerKind::ALL {
        let options = SamplerOptions { s_churn: kind.has_churn().then_some(2.0), ..SamplerOptions::default() };
        let settings = SchedulerConfig::from_json(SD1)?.resolve(kind, SigmaSchedule::Default)?;
        let schedule = Schedule::new(&settings.with_options(&options)?, 6)?;
        let run = |failures: usize| -> Result<Vec<f32>> {
            let mut noise = ImageNoise::new(3, 1);
            let mut x = noise.latents((4, 4, 4))?;
            let mut stepper = Stepper::new(&schedule);
            while stepper.point().is_some() {
                for _ in 0..failures {
                    let mut model = |_: &Tensor, t: f64| Err::<Tensor, _>(Failure::OutOfMemory(t));
                    assert!(stepper.step(&x, &mut model, &mut noise).is_err());
                }
                let both = |x: Tensor| ModelOutput { unconditional: Some(x.clone()), ..x.into() };
                let mut model = |x: &Tensor, _| Ok::<_, Error>(both(x.tanh()?));
                x = stepper.step(&x, &mut model, &mut noise)?;
            }
            Ok(x.flatten_all()?.to_vec1()?)
        };
        assert_eq!(run(0)?, run(2)?, "{kind}");
    }
    Ok(())
}

/// Two walks at different places of different schedules that share one call of the model have the latents that they have
/// alone.
#[test]
fn walks_can_share_a_call_of_the_model() -> Result<()> {
    for kinds in [[SamplerKind::EulerA, SamplerKind::UniPc], [SamplerKind::Heun, SamplerKind::DpmppSde]] {
        let model = |x: &Tensor, timestep: f64| Ok::<_, Error>((x * (timestep / 1000.0))?);
        let bits = |x: &Tensor| x.flatten_all().and_then(|x| x.to_vec1::<f32>());
        let schedules = [schedule(SD1, kinds[0], 6)?, schedule(SD1, kinds[1], 5)?.starting_at(2)?];
        let noises = || [3, 4].map(|seed| ImageNoise::new(seed, 1));
        let mut expected = Vec::new();
        for (schedule, mut noise) in schedules.iter().zip(noises()) {
            let x = noise.latents((4, 4, 4))?;
            expected.push(bits(&sample(schedule, model, &x, &mut noise, &mut |_| ControlFlow::Continue(()))?)?);
        }
        let mut noises = noises();
        let mut latents = [noises[0].latents((4, 4, 4))?, noises[1].latents((4, 4, 4))?];
        let mut steppers = schedules.each_ref().map(Stepper::new);
        while steppers.iter().any(|stepper| stepper.remaining() > 0) {
            let mut asked = Vec::new();
            for i in 0..2 {
                if steppers[i].remaining() > 0 {
                    asked.push((i, steppers[i].evaluation(&latents[i], &mut noises[i])?));
                }
            }
            let inputs: Vec<_> = asked.iter().map(|(_, evaluation)| &evaluation.input).collect();
            let all = Tensor::cat(&inputs, 0)?;
            for (row, (i, evaluation)) in asked.into_iter().enumerate() {
                let answer = model(&all.narrow(0, row, 1)?, evaluation.timestep)?;
                latents[i] = steppers[i].advance(evaluation, answer, &mut noises[i])?;
            }
        }
        for (latents, expected) in latents.iter().zip(&expected) {
            assert_eq!(bits(latents)?, *expected, "{kinds:?}");
        }
    }
    Ok(())
}

#[test]
fn a_break_interrupts() -> Result<()> {
    let schedule = schedule(SD1, SamplerKind::EulerA, 5)?.starting_at(2)?;
    let latents = Tensor::zeros((1, 4, 4, 4), DType::F16, &Device::Cpu)?;
    let model = |x: &Tensor, _| Ok::<_, Failure>(x.to_dtype(DType::F16).map_err(Error::from)?);
    let mut count = 0;
    let result = sample(&schedule, model, &latents, &mut ImageNoise::new(0, 1), &mut |info| {
        assert_eq!((info.index, info.total, info.latents.dtype()), (count, 3, DType::F32));
        count += 1;
        if count == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(result, Err(Failure::Scheduler(Error::Interrupted))));
    assert_eq!(count, 2);
    Ok(())
}

/// Zero terminal SNR starts at alpha 0, where a velocity prediction determines the image and an epsilon prediction does
/// not.
#[test]
fn zero_terminal_snr() -> Result<()> {
    let json = r#"{"rescale_betas_zero_snr": true, "timestep_spacing": "trailing", "prediction_type": "TYPE"}"#;
    for kind in [SamplerKind::Ddim, SamplerKind::Ddpm] {
        let run = |prediction| -> Result<Tensor> {
            let schedule = schedule(&json.replace("TYPE", prediction), kind, 4)?;
            assert_eq!(schedule.points()[0].alpha, 0.0);
            let mut noise = ImageNoise::new(1, 1);
            let start = noise.latents((4, 4, 4))?;
            let model = |x: &Tensor, _: f64| Ok::<_, Error>((x * 0.5)?);
            sample(&schedule, model, &start, &mut noise, &mut |_| ControlFlow::Continue(()))
        };
        let sum = run("v_prediction")?.abs()?.sum_all()?.to_scalar::<f32>()?;
        assert!(sum.is_finite() && sum > 0.0);
        assert!(matches!(run("epsilon"), Err(Error::ZeroSignal { .. })));
    }
    Ok(())
}
