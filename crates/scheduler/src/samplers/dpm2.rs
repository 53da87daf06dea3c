//! DPM-Solver-2 with Karras' slopes, from k-diffusion after arXiv 2206.00927, algorithm 1. The slope at the midpoint of
//! the step (in the logarithm of the noise level) is used for the whole step. With `eta` the step goes down further,
//! and fresh noise brings the latents back up.

use super::{Context, Sampler, along, slope};
use crate::{Point, Result};
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct Dpm2 {
    /// The latents at the start of a step whose midpoint was reached, and their point.
    start: Option<(Tensor, Point)>,
}

impl Sampler for Dpm2 {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let d = slope(x, &cx.denoise(x)?.x0, cx.point.sigma)?;
        if cx.is_first_of_two() {
            self.start = Some((x.clone(), cx.point));
            return along(x, &d, cx.target.sigma - cx.point.sigma);
        }
        let (x, start) = self.start.take().unwrap_or_else(|| (x.clone(), cx.point));
        let step = cx.ancestral(start);
        cx.renoised(&along(&x, &d, step.down - start.sigma)?, &step)
    }
}
