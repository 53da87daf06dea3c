//! The sums that diffusers' own scheduler tests assert (tests/schedulers/ there).
//!
//! The latents are a ramp, the "model" is `x * t / (t + 1)`, and a run has ten steps. Those tests scale the
//! latents for the model and then take the step from the *scaled* latents, so a run here does that too.

use candle_core::{Device, Tensor};
use kiln_scheduler::{
    CpuRng, ImageNoise, NoiseSource, Result, SamplerKind, Schedule, SchedulerConfig, SigmaSchedule, Stepper,
};

/// diffusers' own tolerances.
const SUM_TOLERANCE: f64 = 1e-2;
const MEAN_TOLERANCE: f64 = 1e-3;

/// `arange(768)`, forwards or backwards, as (3, 8, 8, 4) / 768, permuted to (4, 3, 8, 8).
fn ramp(forwards: bool) -> Result<Tensor> {
    let values = (0..768).map(|i| (if forwards { i } else { 767 - i }) as f32 / 768.0).collect();
    Ok(Tensor::from_vec(values, (3, 8, 8, 4), &Device::Cpu)?.permute((3, 0, 1, 2))?.contiguous()?)
}

/// One generator, or one path, for a whole batch.
struct OneSource {
    draws: CpuRng,
    path: ImageNoise,
}

impl NoiseSource for OneSource {
    fn sample(&mut self, like: &Tensor) -> Result<Tensor> {
        self.draws.sample(like)
    }

    fn brownian_increment(&mut self, like: &Tensor, range: (f64, f64), from: f64, to: f64) -> Result<Tensor> {
        Ok(self.path.brownian_increment(&like.unsqueeze(0)?, range, from, to)?.squeeze(0)?)
    }
}

/// A run of one sampler with the keys that its test sets.
struct Run {
    sampler: SamplerKind,
    config: serde_json::Value,
    steps: usize,
    /// The run starts at this evaluation from the ramp with noise added.
    noisy_from: Option<usize>,
}

fn run(sampler: SamplerKind, keys: &str) -> Run {
    use SamplerKind::{Dpm2, Dpm2A, DpmppSde, Euler, EulerA, Heun, Lms};
    let ve = matches!(sampler, Euler | EulerA | Heun | Lms | Dpm2 | Dpm2A | DpmppSde);
    let mut config = serde_json::json!({
        "num_train_timesteps": if ve { 1100 } else { 1000 },
        "beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear",
    });
    let keys: serde_json::Value = serde_json::from_str(keys).unwrap();
    config.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
    let steps = if sampler == SamplerKind::Ddpm { 1000 } else { 10 };
    Run { sampler, config, steps, noisy_from: None }
}

impl Run {
    fn noisy_from(self, index: usize) -> Self {
        Self { noisy_from: Some(index), ..self }
    }

    fn latents(&self) -> Result<Tensor> {
        let config = SchedulerConfig::from_json(&self.config.to_string())?;
        let mut settings = config.resolve(self.sampler, SigmaSchedule::Default)?;
        if self.sampler == SamplerKind::Tcd {
            settings.eta = 0.0;
        }
        let schedule = Schedule::new(&settings, self.steps)?.starting_at(self.noisy_from.unwrap_or(0))?;
        let mut x = match self.noisy_from {
            None => (ramp(true)? * schedule.init_noise_sigma())?,
            Some(index) => schedule.add_noise(&(ramp(true)? * schedule.init_noise_sigma())?, &ramp(false)?, index)?,
        };
        let mut noise = OneSource { draws: CpuRng::new(0), path: ImageNoise::new(0, 1) };
        let mut stepper = Stepper::new(&schedule);
        while let Some(point) = stepper.point() {
            x = (x / point.norm())?;
            // Undoes the scaling of latents that are already scaled.
            let mut model = |x: &Tensor, t: f64| -> Result<Tensor> { Ok((x * (point.norm() * t / (t + 1.0)))?) };
            x = stepper.step(&x, &mut model, &mut noise)?;
        }
        Ok(x)
    }

    /// The sum and the mean of the absolute values at the end.
    fn sum_and_mean(&self) -> Result<(f64, f64)> {
        let values: Vec<f32> = self.latents()?.flatten_all()?.to_vec1()?;
        let sum: f64 = values.iter().map(|v| f64::from(v.abs())).sum();
        Ok((sum, sum / values.len() as f64))
    }

    fn gives(&self, sum: f64, mean: f64) {
        let (found, found_mean) = self.sum_and_mean().unwrap();
        let (error, mean_error) = ((found - sum).abs(), (found_mean - mean).abs());
        println!("{:8} sum {found:.4} for {sum}, mean {found_mean:.6} for {mean}: {}", self.sampler, self.config);
        assert!(error < SUM_TOLERANCE, "{} {}: sum {found} for {sum}", self.sampler, self.config);
        assert!(mean_error < MEAN_TOLERANCE, "{} {}: mean {found_mean} for {mean}", self.sampler, self.config);
    }

    fn gives_mean(&self, mean: f64) {
        let (sum, found) = self.sum_and_mean().unwrap();
        println!("{:8} sum {sum:.4}, mean {found:.6} for {mean}: {}", self.sampler, self.config);
        assert!((found - mean).abs() < MEAN_TOLERANCE, "{} {}: {found} for {mean}", self.sampler, self.config);
    }
}

#[test]
fn ddim() {
    let ddim = |keys| run(SamplerKind::Ddim, keys);
    ddim("{}").gives(172.0067, 0.223967);
    ddim(r#"{"prediction_type": "v_prediction"}"#).gives(52.5302, 0.0684);
    ddim(r#"{"set_alpha_to_one": true, "beta_start": 0.01}"#).gives(149.8295, 0.1951);
    ddim(r#"{"set_alpha_to_one": false, "beta_start": 0.01}"#).gives(149.0784, 0.1941);
    ddim("{}").noisy_from(8).gives(354.5418, 0.4616);
}

#[test]
fn pndm() {
    let pndm = |keys| run(SamplerKind::Pndm, keys);
    pndm("{}").gives(198.1318, 0.2580);
    pndm(r#"{"prediction_type": "v_prediction"}"#).gives(67.3986, 0.0878);
    pndm(r#"{"set_alpha_to_one": true, "beta_start": 0.01}"#).gives(230.0399, 0.2995);
    pndm(r#"{"set_alpha_to_one": false, "beta_start": 0.01}"#).gives(186.9482, 0.2434);
}

#[test]
fn euler() {
    let euler = |keys| run(SamplerKind::Euler, keys);
    euler("{}").gives(10.0807, 0.0131);
    euler(r#"{"use_karras_sigmas": true}"#).gives(124.52299, 0.162139);
    euler(r#"{"prediction_type": "v_prediction"}"#).gives(0.0002, 2.2676e-06);
    euler("{}").noisy_from(8).gives(57062.9297, 74.3007);
}

#[test]
fn euler_ancestral() {
    let euler_a = |keys| run(SamplerKind::EulerA, keys);
    euler_a("{}").gives(152.3192, 0.1983);
    euler_a(r#"{"prediction_type": "v_prediction"}"#).gives(108.4439, 0.1412);
    euler_a("{}").noisy_from(8).gives(56163.0508, 73.1290);
}

#[test]
fn heun() {
    run(SamplerKind::Heun, "{}").gives(0.1233, 0.0002);
    run(SamplerKind::Heun, "{}").noisy_from(16).gives(75074.8906, 97.7538);
}

#[test]
fn lms() {
    run(SamplerKind::Lms, "{}").gives(1006.388, 1.31);
    run(SamplerKind::Lms, r#"{"use_karras_sigmas": true}"#).gives(3812.9927, 4.9648);
    run(SamplerKind::Lms, "{}").noisy_from(8).gives(27663.6895, 36.0204);
}

/// The additional keys of diffusers' test of DPM-Solver++, and `more`.
fn dpmpp_2m(more: &str) -> Run {
    let keys = r#""lower_order_final": false, "final_sigmas_type": "sigma_min", "algorithm_type": "dpmsolver++", "solver_order": 2"#;
    run(SamplerKind::Dpmpp2m, &format!("{{{keys}{more}}}"))
}

#[test]
fn dpm_solver_multistep() {
    dpmpp_2m("").gives_mean(0.3301);
    dpmpp_2m(r#", "prediction_type": "v_prediction""#).gives_mean(0.2251);
    dpmpp_2m(r#", "prediction_type": "v_prediction", "use_karras_sigmas": true"#).gives_mean(0.2096);
    dpmpp_2m(r#", "prediction_type": "v_prediction", "use_lu_lambdas": true"#).gives_mean(0.1554);
    dpmpp_2m(r#", "thresholding": true, "dynamic_thresholding_ratio": 0.87, "sample_max_value": 0.5"#)
        .gives_mean(1.1364);
    dpmpp_2m("").noisy_from(5).gives(318.4111, 0.4146);
}

/// As [`dpmpp_2m`], for UniPC.
fn unipc(more: &str) -> Run {
    let keys = r#""solver_order": 2, "solver_type": "bh2", "final_sigmas_type": "sigma_min""#;
    run(SamplerKind::UniPc, &format!("{{{keys}{more}}}"))
}

#[test]
fn uni_pc() {
    unipc("").gives_mean(0.2464);
    unipc(r#", "use_karras_sigmas": true"#).gives_mean(0.2925);
    unipc(r#", "prediction_type": "v_prediction""#).gives_mean(0.1014);
    unipc(r#", "prediction_type": "v_prediction", "use_karras_sigmas": true"#).gives_mean(0.1966);
    unipc("").noisy_from(8).gives(315.5757, 0.4109);
}

#[test]
fn ddpm() {
    run(SamplerKind::Ddpm, "{}").gives(258.9606, 0.3372);
    run(SamplerKind::Ddpm, r#"{"prediction_type": "v_prediction"}"#).gives(202.0296, 0.2631);
}

#[test]
fn k_dpm_2() {
    let dpm2 = |keys| run(SamplerKind::Dpm2, keys);
    dpm2("{}").gives(20.4125, 0.0266);
    dpm2(r#"{"prediction_type": "v_prediction"}"#).gives(4.6934e-07, 6.1112e-10);
    dpm2("{}").noisy_from(16).gives(70408.4062, 91.6776);
}

#[test]
fn k_dpm_2_ancestral() {
    run(SamplerKind::Dpm2A, "{}").gives(13979.9433, 18.2030);
    run(SamplerKind::Dpm2A, r#"{"prediction_type": "v_prediction"}"#).gives(331.8133, 0.4320);
}

#[test]
fn dpm_solver_sde() {
    let sde = |keys| run(SamplerKind::DpmppSde, keys);
    sde("{}").gives(162.523_834_229, 0.211_619_571);
    sde(r#"{"prediction_type": "v_prediction"}"#).gives(119.848_709_106, 0.156_053_066);
    sde(r#"{"use_karras_sigmas": true}"#).gives(170.313_522_339, 0.221_762);
}

#[test]
fn deis() {
    run(SamplerKind::Deis, r#"{"solver_order": 2}"#).gives_mean(0.23916);
    run(SamplerKind::Deis, r#"{"solver_order": 2, "prediction_type": "v_prediction"}"#).gives_mean(0.091);
    run(SamplerKind::Deis, r#"{"solver_order": 2}"#).noisy_from(8).gives(315.3016, 0.41054);
}

/// The schedule of the consistency models' tests.
const DISTILLED: &str = r#"{"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear"}"#;

#[test]
fn lcm() {
    Run { steps: 1, ..run(SamplerKind::Lcm, DISTILLED) }.gives(18.7097, 0.0244);
    Run { steps: 10, ..run(SamplerKind::Lcm, DISTILLED) }.gives(197.7616, 0.2580);
}

#[test]
fn tcd() {
    Run { steps: 1, ..run(SamplerKind::Tcd, DISTILLED) }.gives(29.8715, 0.0389);
    Run { steps: 10, ..run(SamplerKind::Tcd, DISTILLED) }.gives(181.2040, 0.2359);
}
