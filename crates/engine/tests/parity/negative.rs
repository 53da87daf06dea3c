//! The bounds are tight: in every type they refuse noise, zeros and the results of other requests. Only fixtures are
//! compared here, so the test does not depend on the engine.

use candle_core::{DType, Device, Tensor};
use kiln_compare::psnr;
use kiln_testkit::{Fixture, Limits, similarity};

use crate::cases::{Case, MODELS, TINY, bytes, final_latents};
use crate::limits;
use crate::steps::Call;

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// Requests with similar final latents in a model that reacts weakly to its prompt: both run without guidance, one
/// because its strength is 1, the other because both of its prompts are empty. Their steps are refused.
const NEAR: [(&str, &str, &str); 1] = [("sd1", "empty_prompt", "guidance_1")];

/// The part of a request other than the solver. Two requests that differ only in sampler, steps and spacing converge to
/// the same image and have nearly equal results.
fn asked(model: &str, case: &Case) -> (String, Option<String>, [u64; 5]) {
    let numbers = [case.cfg_scale.to_bits(), case.seed, case.width as u64, case.height as u64, case.images as u64];
    // Only XL distinguishes an empty negative prompt from none.
    let negative = case.negative_prompt.clone().or((model != "sdxl").then(String::new));
    (case.prompt.clone(), negative, numbers)
}

/// Values between -1.7 and 1.7 of mean 0 and variance 1 from a linear congruential generator.
fn uniform(count: usize) -> Vec<f32> {
    let mut state = 0x1234_5678_9abc_def0u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 40) as f32 / (1u64 << 24) as f32 - 0.5) * 12f32.sqrt()
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// Noise with the mean and the variance of a tensor.
fn noise_like(tensor: &Tensor) -> Tensor {
    let mean = f64::from(tensor.mean_all().unwrap().to_scalar::<f32>().unwrap());
    let variance = f64::from(tensor.flatten_all().unwrap().var(0).unwrap().to_scalar::<f32>().unwrap());
    let noise = Tensor::from_vec(uniform(tensor.elem_count()), tensor.shape(), &Device::Cpu).unwrap();
    noise.affine(variance.sqrt(), mean).unwrap()
}

#[track_caller]
fn refuse(limits: Limits, what: &str, found: &Tensor, expected: &Tensor) {
    let alike = similarity(found, expected);
    assert!(!limits.accept(alike), "{what}: {alike:?} is within {limits:?}");
}

/// Fails if a bound accepts a wrong result, or refuses the expected values.
fn refuse_noise(limits: Limits, what: &str, expected: &Tensor) {
    assert!(limits.accept(similarity(expected, expected)), "{what}");
    refuse(limits, &format!("{what}: zeros"), &expected.zeros_like().unwrap(), expected);
    refuse(limits, &format!("{what}: noise"), &noise_like(expected), expected);
    refuse(limits, &format!("{what}: the negative"), &expected.neg().unwrap(), expected);
    refuse(limits, &format!("{what}: half"), &(expected * 0.5).unwrap(), expected);
}

#[test]
fn bounds_of_steps_refuse_noise_zeros_and_other_requests() {
    for model in MODELS {
        let fixture = Fixture::open(&format!("steps_{model}.safetensors"));
        let (cases, calls) = (Case::all(model), Call::all(&fixture));
        let asked_in =
            |call: &Call| asked(model, cases.iter().find(|case| case.name == call.case).expect("a case of the model"));
        for dtype in DTYPES {
            let (limits, mut others) = (limits::steps(model, &fixture, dtype), 0);
            for call in &calls {
                let (expected, bound) = (fixture.tensor(&call.key("output")), limits[&call.name()]);
                let what = format!("{model} {dtype:?} {}", call.name());
                refuse_noise(bound, &what, &expected);
                refuse(bound, &format!("{what}: its latents"), &fixture.tensor(&call.key("latents")), &expected);
                for other in &calls {
                    let found = fixture.tensor(&other.key("output"));
                    // The first call of a request has the same noise for all samplers.
                    let is_same = call.index == 0 && other.index == 0 && asked_in(call) == asked_in(other);
                    if found.dims() == expected.dims() && call.name() != other.name() && !is_same {
                        refuse(bound, &format!("{what}: {}", other.name()), &found, &expected);
                        others += 1;
                    }
                }
            }
            assert!(others >= 5 * calls.len(), "{others} other results for {} calls", calls.len());
        }
    }
}

#[test]
fn bounds_of_runs_refuse_noise_zeros_and_other_requests() {
    for model in MODELS {
        let (fixture, cases) = (Fixture::open(&final_latents(model)), Case::all(model));
        for dtype in DTYPES {
            let mut others = 0;
            for case in &cases {
                let bound = limits::run(model, &case.name, dtype);
                let expected = fixture.tensor(&case.name);
                let what = format!("{model} {dtype:?} {}", case.name);
                refuse_noise(bound, &what, &expected);
                for other in &cases {
                    let is_near = |&(of, a, b): &(&str, &str, &str)| {
                        of == model && [(a, b), (b, a)].contains(&(case.name.as_str(), other.name.as_str()))
                    };
                    let found = fixture.tensor(&other.name);
                    if found.dims() == expected.dims()
                        && asked(model, case) != asked(model, other)
                        && !NEAR.iter().any(is_near)
                    {
                        refuse(bound, &format!("{what}: {}", other.name), &found, &expected);
                        others += 1;
                    }
                }
            }
            assert!(others >= 3 * cases.len(), "{others} other results for {} cases", cases.len());
        }
    }
}

#[test]
fn bounds_of_images_refuse_noise_gray_and_other_images() {
    let image = |model: &str| Fixture::open(&final_latents(model)).tensor("folder.image");
    for model in TINY {
        let (expected, mirrored) = (bytes(&image(model)), bytes(&image(model).flip(&[3]).unwrap()));
        let noise: Vec<u8> = uniform(expected.len()).iter().map(|value| (127.5 + 73.0 * value) as u8).collect();
        let darker: Vec<u8> = expected.iter().map(|value| value.saturating_sub(8)).collect();
        let mut wrong = vec![vec![0; expected.len()], vec![127; expected.len()], noise, mirrored, darker];
        wrong.extend(TINY.iter().filter(|other| **other != model).map(|other| bytes(&image(other))));
        for dtype in DTYPES {
            let least = limits::image(model, dtype);
            assert!(psnr(&expected, &expected).unwrap() >= least);
            for (i, found) in wrong.iter().enumerate() {
                let ratio = psnr(found, &expected).unwrap();
                assert!(ratio < least, "{model} {dtype:?}: wrong image {i} has {ratio:.1} dB, the bound is {least}");
            }
        }
    }
}
