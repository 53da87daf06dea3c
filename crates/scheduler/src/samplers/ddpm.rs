//! Denoising diffusion probabilistic models: arXiv 2006.11239, equation 7, between any two timesteps.

use super::{Context, Sampler, ddim::posterior_variance};
use crate::tensor::linear;
use crate::{Result, Variance};
use candle_core::Tensor;

/// diffusers' lower bound, from older versions that took the logarithm of the variance.
const MIN_VARIANCE: f64 = 1e-20;

pub(crate) struct Ddpm;

impl Sampler for Ddpm {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (from, to) = (cx.point, cx.target);
        let alpha = (from.alpha / to.alpha).powi(2);
        let beta = 1.0 - alpha;
        let x0 = cx.denoise(x)?.x0;
        let mean = linear(&[
            (to.alpha * beta / from.sigma.powi(2), &x0),
            (alpha.sqrt() * (to.sigma / from.sigma).powi(2), x),
        ])?;
        if from.timestep <= 0.0 {
            return Ok(mean);
        }
        let variance = match cx.schedule.config().variance {
            Variance::FixedSmall => posterior_variance(from, to).max(MIN_VARIANCE),
            Variance::FixedLarge => beta,
        };
        linear(&[(1.0, &mean), (variance.sqrt(), &cx.noise.sample(&mean)?)])
    }
}
