//! DPM-Solver++(2S) with ancestral noise: arXiv 2211.01095, algorithm 1 with r = 1/2, as in k-diffusion.

use super::{Context, Sampler, along, ancestral, slope};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct Dpmpp2sA {
    /// The latents at the start of a step whose midpoint was reached, and their noise level.
    start: Option<(Tensor, f64)>,
}

impl Sampler for Dpmpp2sA {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let x0 = cx.denoise(x)?.x0;
        if cx.is_first_of_two() {
            self.start = Some((x.clone(), cx.point.sigma));
            // The first half has first order, which is Euler's step.
            return along(x, &slope(x, &x0, cx.point.sigma)?, cx.target.sigma - cx.point.sigma);
        }
        let (x, sigma) = self.start.take().unwrap_or_else(|| (x.clone(), cx.point.sigma));
        let (sigma_down, sigma_up) = ancestral(sigma, cx.target.sigma, cx.eta());
        let ratio = sigma_down / sigma;
        cx.with_noise(&linear(&[(ratio, &x), (1.0 - ratio, &x0)])?, sigma_up)
    }
}
