//! Sinusoidal embeddings of timesteps and of SDXL's sizes.

#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
use crate::output::store;

const OP: &str = "timestep_embedding";

/// The form of [`timestep_embedding`], as a U-Net's configuration names it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimestepEmbedding {
    /// The embedding's width.
    pub dim: usize,
    /// Whether cosines come before sines.
    pub flip_sin_to_cos: bool,
    /// Taken from the number of frequencies where they are spaced: 0 or 1.
    pub freq_shift: f64,
}

/// `(n, dim)` in `dtype`: for every value `t`, `sin(t f_i)` and `cos(t f_i)` with `half = dim / 2` frequencies
/// `f_i = 10000^(-i / (half - freq_shift))`; an odd `dim` ends with a zero. Always computed in f32, on the host: in
/// half precision `t f_i` would lose whole turns.
///
/// # Errors
/// [`Error::Config`] where `dim` leaves no room for the frequencies.
pub fn timestep_embedding(
    values: &[f32],
    config: TimestepEmbedding,
    dtype: DType,
    device: &Device,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let half = config.dim / 2;
    let spacing = half as f64 - config.freq_shift;
    if half == 0 || spacing <= 0.0 {
        let message = format!("dim is {}, expected at least {}", config.dim, 2 * (1 + config.freq_shift as usize));
        return Err(Error::Config { op: OP, message });
    }
    let frequencies: Vec<f32> = (0..half).map(|i| (-(10_000f32.ln()) * i as f32 / spacing as f32).exp()).collect();
    let mut embedding = Vec::with_capacity(values.len() * config.dim);
    for value in values {
        let (sin, cos) = (frequencies.iter().map(|f| (value * f).sin()), frequencies.iter().map(|f| (value * f).cos()));
        if config.flip_sin_to_cos {
            embedding.extend(cos.chain(sin));
        } else {
            embedding.extend(sin.chain(cos));
        }
        embedding.extend(std::iter::repeat_n(0f32, config.dim % 2));
    }
    let embedding = Tensor::from_vec(embedding, (values.len(), config.dim), &Device::Cpu)?;
    store(OP, embedding.to_dtype(dtype)?.to_device(device)?, out)
}
