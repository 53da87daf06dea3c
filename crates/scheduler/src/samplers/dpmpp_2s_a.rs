//! DPM-Solver++(2S) with ancestral noise: arXiv 2211.01095, algorithm 1 with r = 1/2, as in k-diffusion.

use super::{Context, Sampler, along, slope};
use crate::tensor::linear;
use crate::{Point, Result};
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct Dpmpp2sA {
    /// The latents at the start of a step whose midpoint was reached, and their point.
    start: Option<(Tensor, Point)>,
}

impl Sampler for Dpmpp2sA {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let x0 = cx.denoise(x)?.x0;
        if cx.is_first_of_two() {
            self.start = Some((x.clone(), cx.point));
            // The first half has first order, which is Euler's step.
            return along(x, &slope(x, &x0, cx.point.sigma)?, cx.target.sigma - cx.point.sigma);
        }
        let (x, start) = self.start.take().unwrap_or_else(|| (x.clone(), cx.point));
        let step = cx.ancestral(start);
        let ratio = step.down / start.sigma;
        cx.renoised(&linear(&[(ratio, &x), (1.0 - ratio, &x0)])?, &step)
    }
}

/// The level of the second evaluation of a flow model, half-way in log-SNR; ComfyUI's constant if there is no signal.
pub(super) fn flow_middle(sigma: f64, sigma_down: f64) -> Option<f64> {
    if sigma >= 1.0 { (sigma_down > 0.0).then_some(0.9999) } else { super::flow_middle(sigma, sigma_down) }
}
