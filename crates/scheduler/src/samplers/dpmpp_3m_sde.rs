//! DPM-Solver++(3M) SDE: from k-diffusion, the third order of the same exponential integrator.

use super::{Context, Sampler};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct Dpmpp3mSde {
    /// The images that the last two steps predicted, and the steps' lengths, newest first.
    last: Vec<(Tensor, f64)>,
}

impl Sampler for Dpmpp3mSde {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (s, t) = (cx.point, cx.target);
        let (sigma, sigma_next) = (s.sigma, t.sigma);
        let x0 = cx.denoise(x)?.x0;
        if sigma_next == 0.0 {
            return Ok(x0);
        }
        let h = (s.ratio() / t.ratio()).ln();
        let h_eta = h * (1.0 + cx.eta());
        let phi_1 = -(-h_eta).exp_m1();
        let phi_2 = 1.0 - phi_1 / h_eta;
        let phi_3 = t.alpha * (phi_2 / h_eta - 0.5);
        let phi_2 = t.alpha * phi_2;

        let first_order = linear(&[(t.alpha / s.alpha * (-h_eta).exp(), x), (t.alpha * phi_1, &x0)])?;
        let x = match &self.last[..] {
            [(x0_1, h_1), (x0_2, h_2)] => {
                let (r0, r1) = (h_1 / h, h_2 / h);
                let d1_0 = linear(&[(1.0 / r0, &x0), (-1.0 / r0, x0_1)])?;
                let d1_1 = linear(&[(1.0 / r1, x0_1), (-1.0 / r1, x0_2)])?;
                let d2 = linear(&[(1.0 / (r0 + r1), &d1_0), (-1.0 / (r0 + r1), &d1_1)])?;
                let d1 = linear(&[(1.0, &d1_0), (r0, &d2)])?;
                linear(&[(1.0, &first_order), (phi_2, &d1), (-phi_3, &d2)])?
            }
            [(x0_1, h_1)] => {
                let r = h_1 / h;
                linear(&[(1.0, &first_order), (phi_2 / r, &x0), (-phi_2 / r, x0_1)])?
            }
            _ => first_order,
        };
        self.last.insert(0, (x0, h));
        self.last.truncate(2);
        let noise = sigma_next * (-(-2.0 * h * cx.eta()).exp_m1()).sqrt();
        cx.with_path(&x, (sigma, sigma_next), noise)
    }
}
