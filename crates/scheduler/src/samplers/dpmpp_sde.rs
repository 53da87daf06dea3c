//! DPM-Solver++ (stochastic), singlestep with r = 1/2: from k-diffusion, after arXiv 2211.01095. Both halves start from
//! the same latents. Each goes down further than its noise level, and the Brownian path brings the latents back up to
//! it.

use super::{Context, Sampler, ancestral};
use crate::tensor::linear;
use crate::{Point, Result};
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct DpmppSde {
    /// The latents at the start of a step whose midpoint was reached, and their point.
    start: Option<(Tensor, Point)>,
}

impl Sampler for DpmppSde {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let x0 = cx.denoise(x)?.x0;
        let (start, s) = match self.start.take() {
            None if cx.is_first_of_two() => self.start.insert((x.clone(), cx.point)).clone(),
            None => (x.clone(), cx.point),
            Some(start) => start,
        };
        let t = cx.target;
        let (down, up) = ancestral(s.ratio(), t.ratio(), cx.eta());
        let ratio = down / s.ratio();
        let x = linear(&[(t.alpha / s.alpha * ratio, &start), (t.alpha * (1.0 - ratio), &x0)])?;
        let levels = match cx.is_flow() {
            true => (s.sigma, f64::from(t.sigma as f32)),
            false => (exp_f32(log_f32(s.sigma)), exp_f32(log_f32(t.sigma))),
        };
        cx.with_path(&x, levels, t.alpha * up)
    }
}

/// The noise level at the midpoint of a step.
///
/// k-diffusion computes logarithms in f32 here and for the levels of its noise. The rounding error is as large as the
/// resolution of the Brownian path, so that it affects the result.
pub(super) fn middle(sigma: f64, sigma_next: f64) -> f64 {
    let (t, t_next) = (log_f32(sigma), log_f32(sigma_next));
    exp_f32(t + (t_next - t) * 0.5)
}

fn log_f32(sigma: f64) -> f32 {
    sigma.ln() as f32
}

fn exp_f32(log_sigma: f32) -> f64 {
    f64::from(f64::from(log_sigma).exp() as f32)
}
