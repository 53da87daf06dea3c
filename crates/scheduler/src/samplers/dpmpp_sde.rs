//! DPM-Solver++ (stochastic), singlestep with r = 1/2: from k-diffusion, after arXiv 2211.01095. Both halves start from
//! the same latents. Each goes down further than its noise level, and the Brownian path brings the latents back up to
//! it.

use super::{Context, Sampler, ancestral};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct DpmppSde {
    /// The latents at the start of a step whose midpoint was reached, and their noise level.
    start: Option<(Tensor, f64)>,
}

impl Sampler for DpmppSde {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let x0 = cx.denoise(x)?.x0;
        let (start, sigma) = match self.start.take() {
            None if cx.is_first_of_two() => self.start.insert((x.clone(), cx.point.sigma)).clone(),
            None => (x.clone(), cx.point.sigma),
            Some(start) => start,
        };
        let (sigma_down, sigma_up) = ancestral(sigma, cx.target.sigma, cx.eta());
        let ratio = sigma_down / sigma;
        let x = linear(&[(ratio, &start), (1.0 - ratio, &x0)])?;
        cx.with_path(&x, (exp_f32(log_f32(sigma)), exp_f32(log_f32(cx.target.sigma))), sigma_up)
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
