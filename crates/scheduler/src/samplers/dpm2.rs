//! DPM-Solver-2 with Karras' slopes, from k-diffusion after arXiv 2206.00927, algorithm 1. The slope at the midpoint of
//! the step (in the logarithm of the noise level) is used for the whole step. With `eta` the step goes down further,
//! and fresh noise brings the latents back up.

use super::{Context, Sampler, along, ancestral, slope};
use crate::Result;
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct Dpm2 {
    /// The latents at the start of a step whose midpoint was reached, and their noise level.
    start: Option<(Tensor, f64)>,
}

impl Sampler for Dpm2 {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let d = slope(x, &cx.denoise(x)?.x0, cx.point.sigma)?;
        if cx.is_first_of_two() {
            self.start = Some((x.clone(), cx.point.sigma));
            return along(x, &d, cx.target.sigma - cx.point.sigma);
        }
        let (x, sigma) = self.start.take().unwrap_or_else(|| (x.clone(), cx.point.sigma));
        let (sigma_down, sigma_up) = ancestral(sigma, cx.target.sigma, cx.eta());
        cx.with_noise(&along(&x, &d, sigma_down - sigma)?, sigma_up)
    }
}
