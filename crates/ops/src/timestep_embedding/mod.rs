//! Sinusoidal embeddings of timesteps and of SDXL's sizes.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use crate::error::{Error, Result};
#[cfg(not(feature = "cuda"))]
use crate::no_cuda as cuda;
use crate::output::store;
use crate::trace::{self, Work};

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

impl TimestepEmbedding {
    /// What an index is divided by on the way to its frequency.
    fn spacing(&self) -> f64 {
        (self.dim / 2) as f64 - self.freq_shift
    }
}

/// `(n, dim)` in `dtype`, where `values` `(n)`, which are f32, lie: for every value `t`, `sin(t f_i)` and `cos(t f_i)`
/// with `half = dim / 2` frequencies `f_i = 10000^(-i / (half - freq_shift))`; an odd `dim` ends with a zero. Always
/// computed in f32: in half precision `t f_i` would lose whole turns.
///
/// # Errors
/// [`Error::Shape`] where `values` is no vector, [`Error::Config`] where `dim` leaves no room for the frequencies.
pub fn timestep_embedding(
    values: &Tensor,
    config: TimestepEmbedding,
    dtype: DType,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    if values.rank() != 1 {
        let found = values.dims().to_vec();
        return Err(Error::Shape { op: OP, operand: "values", expected: "(n)".into(), found });
    }
    if config.dim < 2 || config.spacing() <= 0.0 {
        let message = format!("dim is {}, expected at least {}", config.dim, 2 * (1 + config.freq_shift as usize));
        return Err(Error::Config { op: OP, message });
    }
    let work = || Work::new(&[("values", values)]).config(config);
    trace::operator(OP, work, || match cuda::timestep_embedding(values, config, dtype, out)? {
        Some(y) => Ok(y),
        None => store(OP, on_host(values, config, dtype)?, out),
    })
}

/// The same on the processor, whatever the device: a few hundred values.
fn on_host(values: &Tensor, config: TimestepEmbedding, dtype: DType) -> Result<Tensor> {
    let device = values.device();
    let values: Vec<f32> = values.to_dtype(DType::F32)?.to_vec1()?;
    let (half, spacing) = (config.dim / 2, config.spacing() as f32);
    let frequencies: Vec<f32> = (0..half).map(|i| (-(10_000f32.ln()) * i as f32 / spacing).exp()).collect();
    let mut embedding = Vec::with_capacity(values.len() * config.dim);
    for value in &values {
        let (sin, cos) = (frequencies.iter().map(|f| (value * f).sin()), frequencies.iter().map(|f| (value * f).cos()));
        if config.flip_sin_to_cos {
            embedding.extend(cos.chain(sin));
        } else {
            embedding.extend(sin.chain(cos));
        }
        embedding.extend(std::iter::repeat_n(0f32, config.dim % 2));
    }
    let embedding = Tensor::from_vec(embedding, (values.len(), config.dim), &Device::Cpu)?;
    Ok(embedding.to_dtype(dtype)?.to_device(device)?)
}
