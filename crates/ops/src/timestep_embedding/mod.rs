//! Sinusoidal embeddings of timesteps and of SDXL's sizes.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{DType, Device, Tensor};

use crate::backend::{self, Cpu, Kernel, Operator};
use crate::error::{Error, Result};
use crate::operation::{Cost, Elements, Operand, Operation, sizes};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "timestep_embedding";

/// The form of [`timestep_embedding`], in the terms of a U-Net's configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimestepEmbedding {
    /// The embedding's width.
    pub dim: usize,
    /// Whether cosines come before sines.
    pub flip_sin_to_cos: bool,
    /// Subtracted from the number of frequencies in their spacing: 0 or 1.
    pub freq_shift: f64,
}

impl TimestepEmbedding {
    /// The divisor of a frequency's index.
    fn spacing(&self) -> f64 {
        (self.dim / 2) as f64 - self.freq_shift
    }
}

/// The embeddings `(n, dim)` in `dtype` of `values` `(n)`, which are f32, on the same device. For every value `t` they
/// are `sin(t f_i)` and `cos(t f_i)`, with `half = dim / 2` frequencies `f_i = 10000^(-i / (half - freq_shift))`. An
/// odd `dim` ends with a zero. They are computed in f32: in half precision the error of `t f_i` would exceed whole
/// turns.
///
/// # Errors
/// [`Error::Shape`] where `values` is not one-dimensional, [`Error::Config`] where `dim` is too small for the
/// frequencies.
pub fn timestep_embedding(
    values: &Tensor,
    config: TimestepEmbedding,
    dtype: DType,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let call = Call { values, config, dtype };
    call.check()?;
    backend::run(&call, out)
}

/// [`timestep_embedding`] as a value.
pub struct TimestepEmbeddingOp<'a, T = Tensor> {
    /// `(n)` in f32.
    pub values: &'a T,
    /// The form.
    pub config: TimestepEmbedding,
    /// The type of the result.
    pub dtype: DType,
}

type Call<'a> = TimestepEmbeddingOp<'a>;

impl<T: Operand> TimestepEmbeddingOp<'_, T> {
    fn check(&self) -> Result<[usize; 2]> {
        let config = self.config;
        let [n] = sizes(OP, "values", self.values, "(n)")?;
        if config.dim < 2 || config.spacing() <= 0.0 {
            let message = format!("dim is {}, expected at least {}", config.dim, 2 * (1 + config.freq_shift as usize));
            return Err(Error::Config { op: OP, message });
        }
        Ok([n, config.dim])
    }
}

impl<T: Operand> Operation<T> for TimestepEmbeddingOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::TimestepEmbedding(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        Ok(Cost::new(self.check()?, self.dtype))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        timestep_embedding(self.values.tensor(), self.config, self.dtype, None).map(T::result)
    }
}

/// The reference, which computes on the CPU whatever the device.
impl Kernel<Cpu> for Call<'_> {}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.values
    }

    fn work(&self) -> Work {
        Work::new(&[("values", self.values)]).config(self.config)
    }

    fn reference(&self) -> Result<Tensor> {
        on_host(self.values, self.config, self.dtype)
    }
}

/// Computes on the CPU, whatever the device: a few hundred values.
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
