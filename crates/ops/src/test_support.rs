//! Random operands and comparisons for this crate's tests.

use std::cell::Cell;

use candle_core::{Device, Tensor};

thread_local! {
    static STATE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
}

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
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
}

/// Fails unless `found` is within `tolerance` of `expected`, relative to the largest expected value.
#[track_caller]
pub(crate) fn assert_close(found: &Tensor, expected: &Tensor, tolerance: f32) {
    assert_eq!(found.dims(), expected.dims());
    let values =
        |t: &Tensor| t.to_dtype(candle_core::DType::F32).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let (found, expected) = (values(found), values(expected));
    let scale = expected.iter().fold(1e-6f32, |max, v| max.max(v.abs()));
    for (i, (f, e)) in found.iter().zip(&expected).enumerate() {
        let error = (f - e).abs() / scale;
        assert!(error <= tolerance, "element {i}: {f}, expected {e}: error {error:.2e} over {tolerance:.2e}");
    }
}

/// Runs an operator into an output that is full of other values, and compares what the output holds afterwards.
#[track_caller]
pub(crate) fn random_into(expected: &Tensor, op: impl FnOnce(&Tensor) -> Tensor, tolerance: f32) {
    let out = random(expected.dims());
    let returned = op(&out);
    assert_close(&out, expected, tolerance);
    assert_close(&returned, expected, tolerance);
}

/// A random weight, row by row.
pub(crate) fn weight(shape: &[usize]) -> crate::Weight {
    crate::Weight::plain(&random(shape)).unwrap()
}
