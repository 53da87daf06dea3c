//! Denoising diffusion implicit models: arXiv 2010.02502, equations 12 and 16.

use super::{Context, Sampler};
use crate::tensor::linear;
use crate::{Point, Result};
use candle_core::Tensor;

pub(crate) struct Ddim;

impl Sampler for Ddim {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (from, to, eta) = (cx.point, cx.target, cx.eta());
        let denoised = cx.denoise(x)?;
        let fresh = eta * posterior_variance(from, to).sqrt();
        let direction = (to.sigma.powi(2) - fresh.powi(2)).max(0.0).sqrt();
        let x = linear(&[(to.alpha, &denoised.x0), (direction, &denoised.eps)])?;
        if eta > 0.0 { linear(&[(1.0, &x), (fresh, &cx.noise.sample(&x)?)]) } else { Ok(x) }
    }
}

/// Equation 16 with eta 1: the variance of DDPM's posterior.
pub(super) fn posterior_variance(from: Point, to: Point) -> f64 {
    (to.sigma / from.sigma).powi(2) * (1.0 - (from.alpha / to.alpha).powi(2))
}
