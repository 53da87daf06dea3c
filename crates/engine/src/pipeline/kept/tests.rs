//! Images that are kept in a flow model, whose first point has no signal.

use std::sync::Arc;

use kiln_scheduler::{FlowInputs, ImageNoise, NoiseSource, SamplerKind, SchedulerConfig, SigmaSchedule};

use super::*;

fn schedule(sampler: SamplerKind) -> Schedule {
    let config = r#"{"_class_name": "FlowMatchEulerDiscreteScheduler", "shift": 3.0}"#;
    let config = SchedulerConfig::from_json(config).unwrap().resolve(sampler, SigmaSchedule::Default).unwrap();
    let config = config.with_flow(FlowInputs::default()).unwrap();
    Schedule::new(&config, 4).unwrap()
}

fn tensor(values: [f32; 4]) -> Tensor {
    Tensor::new(&values, &Device::Cpu).unwrap().reshape((1, 1, 2, 2)).unwrap()
}

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().unwrap().to_vec1().unwrap()
}

fn close(found: &Tensor, expected: [f32; 4]) -> bool {
    values(found).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6)
}

/// Two latents of the image stay, two are made again.
fn kept(schedule: &Schedule, options: ImageOptions) -> Kept {
    let (image, noise) = (tensor([1.0, 2.0, 3.0, 4.0]), tensor([-1.0, 0.5, 0.25, 2.0]));
    let mask = tensor([0.0, 1.0, 0.0, 1.0]);
    let inverse = mask.affine(-1.0, 1.0).unwrap();
    Kept::new([image, noise, mask, inverse], schedule, &options, &Device::Cpu).unwrap()
}

/// `(1 - m) scale_noise(z, sigma_next, n) + m x`, and after the last step `(1 - m) z + m x`.
#[test]
fn latents_get_the_image_at_the_next_level() {
    let schedule = schedule(SamplerKind::Euler);
    let (kept, latents) = (kept(&schedule, ImageOptions::default()), tensor([9.0; 4]));
    let at = |next: usize| kept.put_back(&latents, &schedule, next).unwrap();
    assert!(close(&at(0), [-1.0, 9.0, 0.25, 9.0]), "all noise at the first level");
    let sigma = schedule.points()[2].sigma as f32;
    let noisy = |image: f32, noise: f32| (1.0 - sigma) * image + sigma * noise;
    assert!(close(&at(2), [noisy(1.0, -1.0), 9.0, noisy(3.0, 0.25), 9.0]));
    assert!(close(&at(4), [1.0, 9.0, 3.0, 9.0]));
}

/// The first evaluation has latents of noise alone: every rule gives finite numbers there.
#[test]
fn every_rule_works_without_signal() {
    for sampler in [SamplerKind::Euler, SamplerKind::Lcm] {
        let schedule = Arc::new(schedule(sampler));
        assert_eq!(schedule.points()[0].alpha, 0.0);
        let rules =
            [(Rule::Diffusers, false), (Rule::Automatic1111, false), (Rule::Automatic1111, true), (Rule::Comfy, false)];
        for (rule, soft_inpainting) in rules {
            let kept = kept(&schedule, ImageOptions { rule, soft_inpainting, ..ImageOptions::default() });
            assert_ne!(kept.blend, Blend::Input, "no sampler of a flow model is on timesteps");
            let mut noise = ImageNoise::new(1, 1);
            let latents = noise.sample(&tensor([0.0; 4])).unwrap();
            let mut stepper = Stepper::new(schedule.clone());
            let evaluation = stepper.evaluation(&latents, &mut noise).unwrap();
            let evaluation = kept.blend_input(evaluation, &stepper).unwrap();
            let answer = kept.blend_output(tensor([0.5, -0.5, 0.25, 1.0]).into(), &stepper, &evaluation).unwrap();
            let image = stepper.prediction(&evaluation, answer.clone()).unwrap();
            let found = values(&image);
            assert!(found.iter().all(|value| value.is_finite()), "{rule:?} {sampler}: {found:?}");
            if rule != Rule::Diffusers {
                let is_kept = (found[0] - 1.0).abs() < 1e-4 && (found[2] - 3.0).abs() < 1e-4;
                assert!(is_kept, "{rule:?} {sampler}: the image stays where the mask says so: {found:?}");
            }
        }
    }
}
