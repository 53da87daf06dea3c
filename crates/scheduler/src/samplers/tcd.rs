//! Trajectory consistency distillation: arXiv 2402.19159, algorithm 4 (strategic stochastic sampling). DDIM's step goes
//! below the next timestep, to `(1 - eta)` of it, and noise brings the latents back up; `eta` is the paper's gamma.

use super::{Context, Sampler};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

pub(crate) struct Tcd;

impl Sampler for Tcd {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (t, eta) = (cx.target, cx.eta());
        let is_last = cx.index + 1 == cx.schedule.points().len();
        // At the end the next timestep is 0 or does not exist. The step goes there in both cases.
        let s = if is_last { t } else { cx.schedule.training_point(((1.0 - eta) * t.timestep).floor() as i64)? };
        let denoised = cx.denoise(x)?;
        let x = linear(&[(s.alpha, &denoised.x0), (s.sigma, &denoised.eps)])?;
        if is_last || eta == 0.0 {
            return Ok(x);
        }
        let ratio = t.alpha / s.alpha;
        let noise = (1.0 - ratio.powi(2)).max(0.0).sqrt();
        linear(&[(ratio, &x), (noise, &cx.noise.sample(&x)?)])
    }
}
