//! The denoiser as a sampler sees it: guided, one call for conditional and unconditional halves.

use candle_core::{DType, Tensor};
use kiln_unet::{Conditioning, Unet};

use crate::error::{Error, Result};

/// A U-Net with its conditions and its guidance.
pub(crate) struct GuidedUnet<'a> {
    pub(crate) unet: &'a Unet,
    /// The unconditional half first, where there is guidance.
    pub(crate) conditioning: Conditioning,
    /// Strength of the guidance, where there is any.
    pub(crate) cfg_scale: Option<f64>,
    /// The type in which the network runs.
    pub(crate) dtype: DType,
}

impl GuidedUnet<'_> {
    /// The model's output for scaled latents `(n, c, h, w)`, in f32.
    ///
    /// Classifier-free guidance (Ho and Salimans, arXiv 2207.12598): `uncond + cfg_scale (cond - uncond)`.
    pub(crate) fn forward(&self, x: &Tensor, timestep: f64) -> Result<Tensor> {
        let x = x.to_dtype(self.dtype)?;
        let Some(cfg_scale) = self.cfg_scale else {
            return self.run(&x, timestep);
        };
        let n = x.dim(0)?;
        let both = self.run(&Tensor::cat(&[&x, &x], 0)?, timestep)?;
        let (uncond, cond) = (both.narrow(0, 0, n)?, both.narrow(0, n, n)?);
        Ok((&uncond + ((cond - &uncond)? * cfg_scale)?)?)
    }

    fn run(&self, x: &Tensor, timestep: f64) -> Result<Tensor> {
        Ok(self.unet.forward(x, &[timestep as f32], &self.conditioning)?.to_dtype(DType::F32)?)
    }
}

/// Refuses a tensor with values that are not numbers.
pub(crate) fn check_finite(stage: &'static str, remedy: &'static str, tensor: &Tensor) -> Result<()> {
    let values: Vec<f32> = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    match values.iter().filter(|value| !value.is_finite()).count() {
        0 => Ok(()),
        count => Err(Error::NotANumber { stage, count, remedy }),
    }
}
