//! Flow models compared with diffusers after every step, and with ComfyUI's schedules and samplers: `fixtures/flow.json`,
//! made by `fixtures/flow.py`.

use candle_core::{Device, Tensor};
use kiln_scheduler::{
    Convention, Error, FlowForm, FlowGrid, FlowInputs, FlowMu, ImageNoise, ModelOutput, NoiseSource, Result,
    SamplerKind, SamplerOptions, Schedule, SchedulerConfig, SigmaSchedule, Stepper,
};
use serde::Deserialize;

#[derive(Deserialize)]
struct Fixture {
    diffusers: Vec<DiffusersCase>,
    levels: Vec<Levels>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct DiffusersCase {
    config: serde_json::Value,
    steps: usize,
    tokens: Option<usize>,
    /// Whether the pipeline passes the levels.
    even: bool,
    empirical: bool,
    start: usize,
    timesteps: Vec<f64>,
    sigmas: Vec<f64>,
    /// Before the first step and after each: the sum of absolute values, then the picked values.
    latents: Vec<Vec<f64>>,
}

#[derive(Deserialize)]
struct Levels {
    table: usize,
    mu: Option<f64>,
    shift: f64,
    schedule: SigmaSchedule,
    steps: usize,
    sigmas: Vec<f64>,
}

#[derive(Deserialize)]
struct Case {
    sampler: SamplerKind,
    schedule: SigmaSchedule,
    steps: usize,
    eta: Option<f64>,
    /// Before each step and at the end.
    latents: Vec<Vec<f64>>,
}

const SHAPE: (usize, usize, usize) = (3, 6, 7);
const PICKED: [usize; 5] = [0, 17, 125, 126, 251];

/// Relative error of timesteps and levels: a few rounding errors of f32.
const SCHEDULE_TOLERANCE: f64 = 1e-6;
/// Error of the latents relative to their mean size.
const LATENT_TOLERANCE: f64 = 1e-5;

/// The additional tolerance of two samplers: diffusers' Heun divides by the least level, and DEIS divides by the signal at the
/// first level, at which one rounding error of f32 grows.
fn more_tolerance(case: &DiffusersCase) -> f64 {
    let levels = case.sigmas.iter().copied().filter(|&sigma| sigma > 0.0);
    match case.config["_class_name"].as_str() {
        Some("FlowMatchHeunDiscreteScheduler") => f64::from(f32::EPSILON) / levels.fold(1.0, f64::min),
        Some("DEISMultistepScheduler") => f64::from(f32::EPSILON) / (1.0 - levels.fold(0.0, f64::max)),
        _ => 0.0,
    }
}

fn fixture() -> Fixture {
    serde_json::from_str(include_str!("../fixtures/flow.json")).unwrap()
}

fn model(x: &Tensor, t: f64) -> Result<ModelOutput> {
    let wave = x.affine(1.7, 0.0)?.sin()?.affine(0.6, 0.05 * (t / 100.0).cos())?;
    let output = (wave + x.affine(0.1, 0.0)?)?;
    let unconditional = Some(x.affine(1.3, 0.0)?.sin()?.affine(0.5, 0.0)?);
    Ok(ModelOutput { unconditional, ..output.into() })
}

/// Noise in the order in which samplers ask for it, without Brownian paths.
struct InOrder(ImageNoise);

impl NoiseSource for InOrder {
    fn sample(&mut self, like: &Tensor) -> Result<Tensor> {
        self.0.sample(like)
    }
}

fn relative(found: f64, expected: f64) -> f64 {
    (found - expected).abs() / expected.abs().max(1e-3)
}

/// The largest error of the latents relative to their mean size.
fn latent_error(found: &[Tensor], expected: &[Vec<f64>]) -> Result<f64> {
    assert_eq!(found.len(), expected.len());
    let mut worst = 0f64;
    for (latents, row) in found.iter().zip(expected) {
        let values: Vec<f32> = latents.flatten_all()?.to_vec1()?;
        let scale = row[0] / values.len() as f64;
        let sum: f64 = values.iter().map(|v| f64::from(v.abs())).sum();
        let errors = PICKED.into_iter().zip(&row[1..]).map(|(i, v)| (f64::from(values[i]) - v).abs() / scale);
        worst = errors.chain([(sum - row[0]).abs() / row[0]]).fold(worst, f64::max);
    }
    Ok(worst)
}

/// The largest relative error of the schedule, and the largest of the latents.
fn diffusers_errors(case: &DiffusersCase) -> Result<(f64, f64)> {
    let config = SchedulerConfig::from_json(&case.config.to_string())?;
    let settings = config.resolve(config.sampler()?, SigmaSchedule::Default)?;
    let settings = settings.with_flow(FlowInputs {
        image_tokens: case.tokens,
        grid: if case.even { FlowGrid::Even } else { FlowGrid::Ends },
        mu: if case.empirical { FlowMu::Empirical } else { FlowMu::Interpolated },
        ..FlowInputs::default()
    })?;
    let whole = Schedule::new(&settings, case.steps)?;
    let schedule = whole.starting_at(whole.step_starts()[case.start])?;

    let mut schedule_error = 0f64;
    assert_eq!(schedule.timesteps().len(), case.timesteps.len());
    for (found, &expected) in schedule.timesteps().into_iter().zip(&case.timesteps) {
        schedule_error = schedule_error.max(relative(found, expected));
    }
    for (point, &sigma) in schedule.points().iter().zip(&case.sigmas) {
        schedule_error = schedule_error.max(relative(point.sigma, sigma));
    }

    let mut noise = ImageNoise::new(1234, 2);
    let unit = noise.latents(SHAPE)?;
    let mut latents = if case.start > 0 {
        let wave: Vec<f32> = (0..252).map(|i| (0.5 * f64::from(i).cos()) as f32).collect();
        schedule.add_noise(&Tensor::from_vec(wave, unit.shape(), &Device::Cpu)?, &unit, schedule.start())?
    } else {
        (unit * schedule.init_noise_sigma())?
    };
    let mut rows = vec![latents.clone()];
    let mut stepper = Stepper::new(&schedule);
    while stepper.remaining() > 0 {
        latents = stepper.step(&latents, &mut model, &mut noise)?;
        rows.push(latents.clone());
    }
    Ok((schedule_error, latent_error(&rows, &case.latents)?))
}

#[test]
fn every_step_is_diffusers() {
    let cases = fixture().diffusers;
    assert!(cases.len() > 100);
    let (mut failures, mut worst) = (Vec::new(), (0f64, 0f64));
    for case in &cases {
        let what = format!("{} steps from {}, {:?} tokens: {}", case.steps, case.start, case.tokens, case.config);
        let (schedule, latents) = diffusers_errors(case).unwrap_or_else(|error| panic!("{what}: {error}"));
        let tolerance = LATENT_TOLERANCE + more_tolerance(case);
        if !(schedule <= SCHEDULE_TOLERANCE && latents <= tolerance) {
            failures.push(format!("schedule {schedule:.1e}, latents {latents:.1e}: {what}"));
        }
        worst = (worst.0.max(schedule), worst.1.max(latents));
    }
    println!("{} cases: schedule {:.1e}, latents {:.1e}", cases.len(), worst.0, worst.1);
    assert!(failures.is_empty(), "{} cases are off:\n{}", failures.len(), failures.join("\n"));
}

const SD3: &str = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#;

fn comfyui(
    kind: SamplerKind,
    schedule: SigmaSchedule,
    eta: Option<f64>,
    inputs: FlowInputs,
) -> Result<kiln_scheduler::Resolved> {
    let options = SamplerOptions { convention: Convention::ComfyUi, eta, ..SamplerOptions::default() };
    SchedulerConfig::from_json(SD3)?.resolve(kind, schedule)?.with_flow(inputs)?.with_options(&options)
}

#[test]
fn noise_levels_are_comfyuis() {
    for Levels { table, mu, shift, schedule, steps, sigmas } in fixture().levels {
        let shift = mu.is_none().then_some(shift);
        let inputs = FlowInputs { table, table_mu: mu, shift, ..FlowInputs::default() };
        let settings = comfyui(SamplerKind::Euler, schedule, None, inputs).unwrap();
        let schedule = Schedule::new(&settings, steps).unwrap();
        assert_eq!(schedule.points().len(), sigmas.len(), "{:?}, {steps} steps", settings.sigmas);
        assert_eq!(schedule.init_noise_sigma(), schedule.points()[0].sigma);
        for (point, expected) in schedule.points().iter().zip(&sigmas) {
            let error = relative(point.sigma, *expected);
            assert!(error < 3e-6, "{:?}, {steps} steps: {} for {expected}", settings.sigmas, point.sigma);
            assert!(relative(point.timestep, 1000.0 * point.sigma) < 1e-6);
        }
    }
}

fn comfyui_error(case: &Case) -> Result<f64> {
    let settings = comfyui(case.sampler, case.schedule, case.eta, FlowInputs::default())?;
    // `dpm2` leaves out a level in ComfyUI's KSampler, which the fixture's function does not do.
    let options = SamplerOptions {
        convention: Convention::ComfyUi,
        eta: case.eta,
        discard_penultimate_sigma: Some(false),
        ..SamplerOptions::default()
    };
    let schedule = Schedule::new(&settings.with_options(&options)?, case.steps)?;
    let mut noise = InOrder(ImageNoise::new(1234, 2));
    let mut latents = (noise.0.latents(SHAPE)? * schedule.init_noise_sigma())?;
    let mut rows = Vec::new();
    let mut stepper = Stepper::new(&schedule);
    while stepper.remaining() > 0 {
        if schedule.step_starts().contains(&stepper.index()) {
            rows.push(latents.clone());
        }
        latents = stepper.step(&latents, &mut model, &mut noise)?;
    }
    rows.push(latents);
    latent_error(&rows, &case.latents)
}

#[test]
fn every_step_is_comfyuis() {
    let cases = fixture().cases;
    let mut failures = Vec::new();
    for case in &cases {
        let error = comfyui_error(case).unwrap();
        let what = format!("{} {}, {} steps, {:?}: {error:.1e}", case.sampler, case.schedule, case.steps, case.eta);
        println!("{what}");
        if error.is_nan() || error > LATENT_TOLERANCE {
            failures.push(what);
        }
    }
    for kind in SamplerKind::ALL.into_iter().filter(|kind| kind.flow() == FlowForm::Own) {
        assert!(cases.iter().any(|case| case.sampler == kind), "{kind}");
    }
    assert!(failures.is_empty(), "{} cases are off:\n{}", failures.len(), failures.join("\n"));
}

/// Every sampler and schedule runs from pure noise, which has no signal, or is refused with a list of those that do.
#[test]
fn every_sampler_runs_or_is_refused_by_name() -> Result<()> {
    let config = SchedulerConfig::from_json(SD3)?;
    for kind in SamplerKind::ALL {
        for schedule in SigmaSchedule::ALL {
            for convention in [Convention::Diffusers, Convention::Automatic1111, Convention::ComfyUi] {
                let resolved = config.resolve(kind, schedule);
                if kind.flow() == FlowForm::Refused || !schedule.works_for_flow() {
                    let message = resolved.unwrap_err().to_string();
                    let named = message.contains(kind.id()) && message.contains("euler, euler_a, dpmpp_2m, heun");
                    let of_schedule = message.contains(schedule.id()) && message.contains("default, karras");
                    assert!(named || of_schedule, "{message}");
                    continue;
                }
                let options = SamplerOptions { convention, ..SamplerOptions::default() };
                for steps in [1, 2, 5, 24] {
                    let schedule = Schedule::new(&resolved.as_ref().unwrap().clone().with_options(&options)?, steps)?;
                    let mut noise = ImageNoise::new(3, 1);
                    let mut x = (noise.latents(SHAPE)? * schedule.init_noise_sigma())?;
                    let mut stepper = Stepper::new(&schedule);
                    while stepper.remaining() > 0 {
                        x = stepper.step(&x, &mut model, &mut noise)?;
                    }
                    let sum = x.abs()?.sum_all()?.to_scalar::<f32>()?;
                    assert!(sum.is_finite() && sum < 1e4, "{kind} {convention} {steps}: {sum}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn strength_is_rounded_up() -> Result<()> {
    let schedule =
        |kind, steps| Schedule::new(&SchedulerConfig::from_json(SD3)?.resolve(kind, SigmaSchedule::Default)?, steps);
    let euler = schedule(SamplerKind::Euler, 10)?;
    assert_eq!([0.75, 0.7, 1.0, 0.05, 0.0].map(|strength| euler.start_for_strength(strength)), [2, 3, 0, 9, 10]);
    let heun = schedule(SamplerKind::Heun, 10)?;
    assert_eq!(heun.start_for_strength(0.75), 4);
    Ok(())
}

#[test]
fn options_and_keys_that_do_not_apply_are_refused() -> Result<()> {
    let apply = |kind, options: SamplerOptions| {
        let resolved = SchedulerConfig::from_json(SD3)?.resolve(kind, SigmaSchedule::Karras)?;
        resolved.with_options(&options)
    };
    let message = |kind, options| apply(kind, options).unwrap_err().to_string();
    let default = SamplerOptions::default;
    let churn = message(SamplerKind::Euler, SamplerOptions { s_churn: Some(1.0), ..default() });
    assert!(churn.contains("`s_churn` is 1, expected none with a flow model"), "{churn}");
    let eta = message(SamplerKind::ResMultistep, SamplerOptions { eta: Some(1.0), ..default() });
    assert!(eta.contains("it is for euler_a, dpm2_a"), "{eta}");
    let level = message(SamplerKind::Euler, SamplerOptions { sigmas: Some(vec![14.6, 1.0]), ..default() });
    assert!(level.contains("at most 1"), "{level}");
    let most = message(SamplerKind::Euler, SamplerOptions { sigma_max: Some(2.0), ..default() });
    assert!(most.contains("a number from 0.00001 to 1"), "{most}");
    assert_eq!(apply(SamplerKind::EulerA, SamplerOptions { eta: Some(0.5), ..default() })?.eta, 0.5);

    for (json, named) in [
        (r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "invert_sigmas": true}"#, "invert_sigmas = true"),
        (r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": -1}"#, "shift = -1"),
        (r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "time_shift_type": "x"}"#, "time_shift_type = x"),
        (r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift_terminal": 1.5}"#, "shift_terminal = 1.5"),
        (
            r#"{"use_flow_sigmas": true, "prediction_type": "flow_prediction", "use_karras_sigmas": true}"#,
            "use_karras_sigmas = true",
        ),
        (r#"{"use_flow_sigmas": true, "prediction_type": "flow_prediction", "flow_shift": 0}"#, "flow_shift = 0"),
        (
            r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true, "max_image_seq_len": 256}"#,
            "max_image_seq_len = 256",
        ),
    ] {
        let found = SchedulerConfig::from_json(json)?.resolve(SamplerKind::Euler, SigmaSchedule::Default);
        let found = found.unwrap_err().to_string();
        assert!(found.contains(named), "{found}");
    }
    let class = SchedulerConfig::from_json(r#"{"_class_name": "FlowMatchLCMScheduler"}"#)?.sampler().unwrap_err();
    assert!(class.to_string().contains("FlowMatchLCMScheduler"), "{class}");
    Ok(())
}

/// A shift that depends on the size needs it; a static one of the request takes its place.
#[test]
fn a_dynamic_shift_needs_the_size() -> Result<()> {
    let json = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0, "use_dynamic_shifting": true}"#;
    let settings = SchedulerConfig::from_json(json)?.resolve(SamplerKind::Euler, SigmaSchedule::Default)?;
    assert!(matches!(Schedule::new(&settings, 4), Err(Error::NoImageTokens)));
    let inputs = FlowInputs { shift: Some(3.0), grid: FlowGrid::Even, ..FlowInputs::default() };
    let levels: Vec<f64> =
        Schedule::new(&settings.clone().with_flow(inputs)?, 4)?.points().iter().map(|p| p.sigma).collect();
    assert!(
        levels.iter().zip([1.0, 0.9, 0.75, 0.5]).all(|(found, expected)| (found - expected).abs() < 1e-7),
        "{levels:?}"
    );
    let many = FlowInputs { image_tokens: Some(usize::MAX), ..FlowInputs::default() };
    let error = Schedule::new(&settings.clone().with_flow(many)?, 4).unwrap_err().to_string();
    assert!(error.contains("`image_tokens`"), "{error}");
    let wrong = settings.with_flow(FlowInputs { shift: Some(f64::NAN), ..FlowInputs::default() });
    assert!(wrong.unwrap_err().to_string().contains("`shift` is NaN"));
    Ok(())
}

#[derive(Deserialize)]
struct SharedCase {
    name: String,
    model: String,
    width: usize,
    height: usize,
    steps: usize,
    sampler: Option<SamplerKind>,
    scheduler: Option<SigmaSchedule>,
    shift: Option<f64>,
    strength: Option<f64>,
    timesteps: Vec<f64>,
    schedule: Vec<f64>,
}

/// The levels and timesteps of all families' pipelines.
#[test]
#[ignore = "needs ../shared/data"]
fn shared_data_families_have_diffusers_levels() -> Result<()> {
    let folder = kiln_testkit::shared_data("families");
    let text = std::fs::read_to_string(folder.join("cases.json")).unwrap();
    let cases: Vec<SharedCase> = serde_json::from_str(&text)?;
    assert_eq!(cases.len(), 33);
    for case in cases {
        let path = folder.join("models").join(&case.model).join("scheduler/scheduler_config.json");
        let config = SchedulerConfig::from_json(&std::fs::read_to_string(path).unwrap())?;
        let kind = case.sampler.map_or_else(|| config.sampler(), Ok)?;
        let inputs = FlowInputs {
            image_tokens: Some(case.width * case.height / 256),
            shift: case.shift,
            grid: if case.model.starts_with("sd3") { FlowGrid::Ends } else { FlowGrid::Even },
            mu: if case.model.starts_with("flux2") { FlowMu::Empirical } else { FlowMu::Interpolated },
            ..FlowInputs::default()
        };
        let settings = config.resolve(kind, case.scheduler.unwrap_or_default())?.with_flow(inputs)?;
        let schedule = Schedule::new(&settings, case.steps)?;
        let start = case.strength.map_or(0, |strength| schedule.start_for_strength(strength));
        // The list is rounded to 7 digits.
        let sigmas: Vec<f64> = schedule.points().iter().map(|point| point.sigma).chain([0.0]).collect();
        assert_eq!(sigmas.len(), case.schedule.len(), "{}", case.name);
        assert!(sigmas.iter().zip(&case.schedule).all(|(a, b)| (a - b).abs() < 2e-7), "{}: {sigmas:?}", case.name);
        let timesteps = &schedule.timesteps()[start..];
        assert_eq!(timesteps.len(), case.timesteps.len(), "{}", case.name);
        assert!(
            timesteps.iter().zip(&case.timesteps).all(|(a, b)| (a - b).abs() < 2e-4),
            "{}: {timesteps:?}",
            case.name
        );
    }
    Ok(())
}
