//! Euler's method on the probability flow ODE: arXiv 2206.00364, algorithm 2 at first order.

use super::{Context, Sampler, along, slope};
use crate::Result;
use candle_core::Tensor;

pub(crate) struct Euler;

impl Sampler for Euler {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (sigma, sigma_next) = (cx.point.sigma, cx.target.sigma);
        let d = slope(x, &cx.denoise(x)?.x0, sigma)?;
        along(x, &d, sigma_next - sigma)
    }
}
