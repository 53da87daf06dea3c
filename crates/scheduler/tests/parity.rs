//! Every sampler with the tiny models' own configurations and variants of them, after every step, and the noise:
//! compared with `tests/fixtures/stages`.

use candle_core::{Device, Tensor};
use kiln_scheduler::{CpuRng, Error, NoiseSource, Result, Schedule, SchedulerConfig, SigmaSchedule, Stepper};
use kiln_testkit::{Fixture, Parity, fixtures};
use serde::Deserialize;

/// The bound for the latents after all steps, in their standard deviations.
const BOUND: f64 = 1e-4;

#[derive(Deserialize)]
struct Case {
    name: String,
    sampler: String,
    schedule: SigmaSchedule,
    config: serde_json::Value,
    steps: usize,
}

#[derive(Deserialize)]
struct Draws {
    name: String,
    seed: u64,
    draws: Vec<Vec<usize>>,
}

fn read<T: serde::de::DeserializeOwned>(name: &str) -> T {
    serde_json::from_str(&std::fs::read_to_string(fixtures(name)).unwrap()).unwrap()
}

/// A substitute for the network: `tanh(0.6 x + 0.3 roll(x, 1) + 0.2 sin(t / 100))`.
fn model(x: &Tensor, timestep: f64) -> Result<Tensor> {
    let wave = f64::from((timestep as f32 / 100.0).sin());
    Ok((x.affine(0.6, 0.2 * wave)? + x.roll(1, 3)?.affine(0.3, 0.0)?)?.tanh()?)
}

/// The outputs of the fixture's generator, in order.
struct Recorded {
    draws: Tensor,
    next: usize,
}

impl NoiseSource for Recorded {
    fn sample(&mut self, _like: &Tensor) -> Result<Tensor> {
        self.next += 1;
        Ok(self.draws.get(self.next - 1)?)
    }
}

#[test]
fn every_sampler_steps_as_in_diffusers() {
    let cases: Vec<Case> = read("stages/schedulers.json");
    let fixture = Fixture::open("stages/schedulers.safetensors");
    assert!(cases.len() > 100);
    for case in &cases {
        let config = SchedulerConfig::from_json(&case.config.to_string()).unwrap();
        let settings = config.resolve(case.sampler.parse().unwrap(), case.schedule).unwrap();
        let schedule = Schedule::new(&settings, case.steps).unwrap();
        let timesteps: Vec<f32> = schedule.timesteps().iter().map(|&t| t as f32).collect();
        for (found, expected) in timesteps.iter().zip(fixture.values(&format!("{}.timesteps", case.name))) {
            assert!(
                (found - expected).abs() <= 1e-5 * expected.max(1.0),
                "{}: {found}, expected {expected}",
                case.name
            );
        }
        let sigma = fixture.values(&format!("{}.init_noise_sigma", case.name))[0];
        assert!((schedule.init_noise_sigma() as f32 - sigma).abs() <= 1e-5 * sigma, "{}", case.name);

        let expected = fixture.tensor(&format!("{}.latents", case.name));
        let mut noise = Recorded { draws: fixture.tensor("noise.draws"), next: 0 };
        let mut latents = (fixture.tensor("noise.init") * schedule.init_noise_sigma()).unwrap();
        let mut stepper = Stepper::new(&schedule);
        let mut found = Vec::new();
        while stepper.point().is_some() {
            latents = stepper.step::<Error, _>(&latents, &mut |x, t| model(x, t), &mut noise).unwrap();
            found.push(latents.clone());
        }
        // Each step is compared with diffusers' in its own standard deviations. The worst step is printed.
        let parity = Parity::new("scheduler", case.sampler.clone());
        assert_eq!(found.len(), expected.dim(0).unwrap(), "{}", case.name);
        let worst = (0..found.len())
            .max_by(|&a, &b| {
                let error = |i: usize| kiln_testkit::deviation(&found[i], &expected.get(i).unwrap()).error;
                error(a).total_cmp(&error(b))
            })
            .unwrap();
        println!("{}, evaluation {worst}", case.name);
        parity.check(case.schedule.id(), &found[worst], &expected.get(worst).unwrap(), bound(case));
    }
}

/// With zero terminal SNR Euler starts at sigma 4096, where one rounding error of f32 is 2e-4 of a later latent.
fn bound(case: &Case) -> f64 {
    if case.name.contains("zero_snr") { 10.0 * BOUND } else { BOUND }
}

#[test]
fn noise_is_drawn_as_pytorch_draws_it() {
    let fixture = Fixture::open("stages/rng.safetensors");
    for Draws { name, seed, draws } in read::<Vec<Draws>>("stages/rng.json") {
        let mut rng = CpuRng::new(seed);
        for (i, shape) in draws.iter().enumerate() {
            let found = Tensor::from_vec(rng.normals(shape.iter().product()), shape.as_slice(), &Device::Cpu).unwrap();
            let expected = fixture.values(&format!("{name}.{i}"));
            for (found, expected) in found.flatten_all().unwrap().to_vec1::<f32>().unwrap().iter().zip(expected) {
                let error = (found - expected).abs() / expected.abs().max(1.0);
                assert!(error <= 3e-7, "{name}.{i}: {found}, expected {expected}");
            }
        }
    }
}
