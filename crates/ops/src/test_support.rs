//! Random operands and comparisons for this crate's tests.
//!
//! The tests run in f32 on the CPU, or as the environment says: `KILN_TEST_DEVICE` (`cpu`, `cuda`) and
//! `KILN_TEST_DTYPE` (`f32`, `f16`, `bf16`). References always run in f32 on the CPU, over operands with the same
//! values ([`exact`]).

use std::cell::Cell;
use std::sync::LazyLock;

use candle_core::{DType, Device, Tensor};

use crate::Weight;
use crate::device::{OpenDevice, open_gpu};

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

/// The device and the type in which kernels are tested.
pub(crate) static TARGET: LazyLock<(Device, DType)> = LazyLock::new(|| {
    let value = |name| std::env::var(name).unwrap_or_default();
    let device = match value("KILN_TEST_DEVICE").as_str() {
        "cuda" => {
            static OPEN: LazyLock<OpenDevice> = LazyLock::new(|| open_gpu(0).unwrap());
            Device::clone(&OPEN)
        }
        _ => Device::Cpu,
    };
    let dtype = match value("KILN_TEST_DTYPE").as_str() {
        "f16" => DType::F16,
        "bf16" => DType::BF16,
        _ => DType::F32,
    };
    (device, dtype)
});

/// Values between -1 and 1 from a splitmix64 stream: the same in every run of a test.
pub(crate) fn random(shape: &[usize]) -> Tensor {
    let next = || {
        let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        STATE.set(state);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z >> 40) as f32 / (1u64 << 23) as f32) - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    let (device, dtype) = &*TARGET;
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(*dtype).unwrap().to_device(device).unwrap()
}

/// The values in f32 on the CPU.
pub(crate) fn exact(tensor: &Tensor) -> Tensor {
    tensor.to_device(&Device::Cpu).unwrap().to_dtype(DType::F32).unwrap()
}

/// Fails unless `found` is within `tolerance` of `expected`, relative to the largest expected value. For results of 16
/// bits the tolerance is at least two units in the last place of that value: 2^-9 in f16, 2^-6 in bf16. A tolerance of
/// 0 means equal values in every type.
#[track_caller]
pub(crate) fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(found.dims(), expected.dims());
    let tolerance = match found.dtype() {
        DType::F16 if tolerance > 0.0 => tolerance.max(1.0 / 512.0),
        DType::BF16 if tolerance > 0.0 => tolerance.max(1.0 / 64.0),
        _ => tolerance,
    };
    let values = |t: &Tensor| exact(t).flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (found, expected) = (values(found), values(expected));
    let scale = expected.iter().fold(1e-6f32, |max, v| max.max(v.abs()));
    for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
        let error = (f - e).abs() / scale;
        assert!(error <= tolerance, "element {i}: {f}, expected {e}: error {error:.2e} over {tolerance:.2e}");
    }
}

/// Runs an operator into an output with other values, and compares the output afterwards.
#[track_caller]
pub(crate) fn random_into(expected: &Tensor, op: impl FnOnce(&Tensor) -> Tensor, tolerance: f32) {
    let out = random(expected.dims());
    let returned = op(&out);
    assert_close(&out, expected, tolerance);
    assert_close(&returned, expected, tolerance);
}

/// A random weight, row by row.
pub(crate) fn weight(shape: &[usize]) -> Weight {
    Weight::plain(&random(shape)).unwrap()
}

/// The weight in f32 on the CPU.
pub(crate) fn exact_weight(weight: &Weight) -> Weight {
    Weight::plain(&exact(weight.tensor())).unwrap()
}
