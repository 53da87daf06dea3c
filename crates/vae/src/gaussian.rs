//! The encoder's result: a normal distribution of the latents.

use candle_core::{DType, Tensor};

use crate::error::Result;

/// The least logarithm of a variance, as in diffusers' `DiagonalGaussianDistribution`.
pub(crate) const LEAST: f64 = -30.0;
/// The most.
pub(crate) const MOST: f64 = 20.0;

/// Independent normal distributions of the latents of an image, unscaled ([`crate::VaeConfig::scale`]).
#[derive(Debug, Clone)]
pub struct DiagonalGaussian<T = Tensor> {
    /// The means, `(b, latent_channels, h, w)`: diffusers' `mode()`.
    pub mean: T,
    /// The logarithms of the variances, limited to -30..20, of the same shape. NaN stays NaN.
    pub log_variance: T,
}

impl DiagonalGaussian {
    /// The standard deviations, in f32.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn std(&self) -> Result<Tensor> {
        Ok((self.log_variance.to_dtype(DType::F32)? * 0.5)?.exp()?)
    }

    /// Latents for standard normal `noise` of the shape of the means: `mean + std noise`, in f32, on the device of the
    /// means.
    ///
    /// # Errors
    /// Errors of candle, also if the noise has another shape.
    pub fn sample(&self, noise: &Tensor) -> Result<Tensor> {
        let noise = noise.to_dtype(DType::F32)?.to_device(self.mean.device())?;
        Ok((self.mean.to_dtype(DType::F32)? + self.std()?.mul(&noise)?)?)
    }

    /// Whether means and standard deviations are all finite: f16 ends at 65,504, and the activations of some autoencoders
    /// go beyond. An image whose distribution is not finite is to be encoded again in a wider type.
    ///
    /// # Errors
    /// Errors of candle.
    pub fn is_finite(&self) -> Result<bool> {
        let finite = |tensor: &Tensor| -> Result<bool> {
            // A sum of zeros, or NaN: infinity times 0 is NaN.
            let sum = (tensor.to_dtype(DType::F32)? * 0.0)?.sum_all()?.to_scalar::<f32>()?;
            Ok(sum == 0.0)
        };
        Ok(finite(&self.mean)? && finite(&self.log_variance)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn gaussian(mean: f32, log_variance: f32) -> DiagonalGaussian {
        let [mean, log_variance] = [mean, log_variance].map(|value| Tensor::new(&[value, 1.0], &Device::Cpu).unwrap());
        DiagonalGaussian { mean, log_variance }
    }

    #[test]
    fn values_that_are_not_finite_are_found() {
        assert!(gaussian(1.0, -30.0).is_finite().unwrap());
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert!(!gaussian(value, 0.0).is_finite().unwrap());
            assert!(!gaussian(0.0, value).is_finite().unwrap());
        }
    }

    #[test]
    fn samples_are_of_f32_in_any_type() {
        let DiagonalGaussian { mean, log_variance } = gaussian(2.0, 2.0f32.ln());
        let half = |tensor: &Tensor| tensor.to_dtype(DType::BF16).unwrap();
        let gaussian = DiagonalGaussian { mean: half(&mean), log_variance: half(&log_variance) };
        let noise = Tensor::new(&[3f32, 0.0], &Device::Cpu).unwrap();
        let sample = gaussian.sample(&noise).unwrap().to_vec1::<f32>().unwrap();
        assert!((sample[0] - (2.0 + 3.0 * 2f32.sqrt())).abs() < 0.01 && sample[1] == 1.0, "{sample:?}");
    }
}
