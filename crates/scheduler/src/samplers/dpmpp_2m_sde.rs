//! DPM-Solver++(2M) SDE: from k-diffusion, after arXiv 2211.01095, algorithm 2, with the noise of the reverse SDE.

use super::{Context, Sampler};
use crate::tensor::linear;
use crate::{Result, SecondOrder};
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct Dpmpp2mSde {
    /// The image that the last step predicted, and the step's length.
    last: Option<(Tensor, f64)>,
}

impl Sampler for Dpmpp2mSde {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (s, t) = (cx.point, cx.target);
        let (sigma, sigma_next) = (s.sigma, t.sigma);
        let x0 = cx.denoise(x)?.x0;
        if sigma_next == 0.0 {
            return Ok(x0);
        }
        let h = (s.ratio() / t.ratio()).ln();
        let eta_h = cx.eta() * h;
        let phi = -(-h - eta_h).exp_m1();

        let last = self.last.replace((x0.clone(), h));
        let mut terms = vec![(sigma_next / sigma * (-eta_h).exp(), x), (t.alpha * phi, &x0)];
        if let Some((x0_last, h_last)) = &last {
            let r = h_last / h;
            let weight = match cx.schedule.config().solver.second_order {
                SecondOrder::Midpoint => 0.5 * phi,
                SecondOrder::Heun => 1.0 - phi / (h + eta_h),
            };
            let weight = t.alpha * weight;
            terms.extend([(weight / r, &x0), (-weight / r, x0_last)]);
        }
        let noise = sigma_next * (-(-2.0 * eta_h).exp_m1()).sqrt();
        cx.with_path(&linear(&terms)?, (sigma, sigma_next), noise)
    }
}
