//! Error bounds. `negative.rs` shows that none of them accepts noise, zeros or the result of another request.

use std::collections::BTreeMap;

use candle_core::DType;
use kiln_testkit::{Fixture, Limits};

use crate::cases::EMOJI;

/// The maximum ratio of a step's error to that of PyTorch's step in the same type, for the tiny models. Both round at
/// different points, so the ratio varies: on the CPU it is 0.24 to 2.1 over 270 steps in f16 and bf16, with median 0.9.
const TINY_FACTOR: f64 = 2.5;
/// The maximum ratio of the angles to the f32 step: one on an H200 (sd2v, f16) is 2.9 times PyTorch's.
const ANGLE_FACTOR: f64 = 1.25;
/// The same for the trained model, where the ratio is 0.84 to 0.92.
const TRAINED_FACTOR: f64 = 2.0;

/// The maximum error of any step regardless of PyTorch's: it detects, for example, a result scaled by half.
const LOOSEST: Limits = Limits { cosine: 0.9, error: 0.4 };

/// In f32 only the order of sums differs.
const F32: Limits = Limits { cosine: 0.999_999_9, error: 1e-4 };

/// The errors of PyTorch's half precision relative to f32, by call and type, from the fixture's note: cosine and mean
/// error.
pub type Rounding = BTreeMap<String, BTreeMap<String, [f64; 2]>>;

/// The limits of each call of a fixture of steps, by `{case}.{call}`.
pub fn steps(model: &str, fixture: &Fixture, dtype: DType) -> BTreeMap<String, Limits> {
    let factor = if model == EMOJI { TRAINED_FACTOR } else { TINY_FACTOR };
    let rounding: Rounding = fixture.note("rounding");
    let limits = |by_type: &BTreeMap<String, [f64; 2]>| {
        let name = match dtype {
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            _ => return F32,
        };
        let [cosine, error] = by_type[name];
        // The angle is proportional to the error, and 1 - cosine to its square. The note has seven digits.
        let least = 1.0 - (ANGLE_FACTOR * factor).powi(2) * (1.0 - cosine + 1e-7);
        Limits { cosine: least.max(LOOSEST.cosine), error: (factor * error).min(LOOSEST.error) }
    };
    rounding.iter().map(|(call, by_type)| (call.clone(), limits(by_type))).collect()
}

/// The limits of a case's final latents: one and a half times the largest error of all cases on CPUs, with and without
/// products of bf16, and on an H200, and the cosine for it. The random models amplify the rounding of early steps, the
/// trained one does not. Nothing averages the rounding of a single step: in bf16 sd1's has the error 0.044 in diffusers, and
/// 0.050 here on a CPU without products of bf16.
pub fn run(model: &str, case: &str, dtype: DType) -> Limits {
    let (cosine, error) = match (dtype, model) {
        (DType::BF16, "sd1") if case == "one_step" => (0.9965, 7.5e-2),
        (DType::F16, "sd1" | "lcm") => (0.99996, 8e-3),
        (DType::F16, "sd2v") => (0.980, 0.155),
        (DType::F16, "sdxl") => (0.9928, 0.115),
        (DType::F16, EMOJI) => (0.999_999, 6.5e-4),
        (DType::BF16, "sd1" | "lcm") => (0.9985, 4.8e-2),
        (DType::BF16, "sd2v") => (0.985, 0.17),
        (DType::BF16, "sdxl") => (0.96, 0.26),
        (DType::BF16, EMOJI) => (0.99998, 6e-3),
        _ => return F32,
    };
    Limits { cosine, error }
}

/// The minimum PSNR of images in dB, 4 dB below the smallest on the CPU and on an H200. In f32 a few values round to an
/// adjacent level of 255.
pub fn image(model: &str, dtype: DType) -> f64 {
    match (dtype, model) {
        (DType::F16, "sd1") => 54.0,
        (DType::F16, "sd2v") => 45.0,
        (DType::F16, "sdxl") => 47.0,
        (DType::BF16, "sd1") => 39.0,
        (DType::BF16, "sd2v") => 35.0,
        (DType::BF16, "sdxl") => 31.0,
        _ => 70.0,
    }
}
