//! Random numbers that depend on a name or a place alone: the same in `tests/reference/patterns.py`.

use candle_core::{Device, Tensor};

/// MurmurHash3's finalizer of a 32-bit number.
pub fn hashed(number: u32) -> u32 {
    let x = (number ^ (number >> 16)).wrapping_mul(0x85eb_ca6b);
    let x = (x ^ (x >> 13)).wrapping_mul(0xc2b2_ae35);
    x ^ (x >> 16)
}

/// Weights that depend on the name and the shape of a tensor alone: positive for LPIPS's linear heads and for gammas and variances of
/// batch norms, small for biases and means, and with the variance 2 / fan_in (He et al., arXiv 1502.01852) for kernels.
#[track_caller]
pub fn hashed_weights(name: &str, shape: &[usize]) -> Tensor {
    let named = name.bytes().fold(0x811c_9dc5u32, |value, byte| (value ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let fan_in: usize = shape[1..].iter().product();
    let value = |i: usize| {
        let unit = (hashed(named.wrapping_add(i as u32)) >> 8) as f32 / (1 << 24) as f32;
        match name {
            _ if name.starts_with("lin") => unit,
            _ if name.ends_with("bn.weight") || name.ends_with("running_var") => unit + 0.5,
            _ if name.ends_with("bias") || name.ends_with("running_mean") => (unit - 0.5) * 0.25,
            _ => (unit - 0.5) * (24.0 / fan_in as f64).sqrt() as f32,
        }
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(value).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap_or_else(|error| panic!("{name}: {error}"))
}
