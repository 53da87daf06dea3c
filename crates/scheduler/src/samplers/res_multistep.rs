//! Refined exponential solver, multistep of order 2: arXiv 2308.02157, section 3.3, as in ComfyUI. With `eta` the step
//! goes down further, and fresh noise brings the latents back up.

use super::{Context, Sampler, ancestral};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct ResMultistep {
    last: Option<Last>,
}

/// The last step: its start, the level it went down to, and the image that it predicted.
struct Last {
    sigma: f64,
    sigma_down: f64,
    x0: Tensor,
}

impl Sampler for ResMultistep {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let sigma = cx.point.sigma;
        let (sigma_down, sigma_up) = ancestral(sigma, cx.target.sigma, cx.eta());
        let x0 = cx.denoise(x)?.x0;
        let ratio = sigma_down / sigma;
        let x = match self.last.as_ref().filter(|_| sigma_down > 0.0) {
            // Euler's step.
            None => linear(&[(ratio, x), (1.0 - ratio, &x0)])?,
            Some(last) => {
                let h = -ratio.ln();
                let c2 = (last.sigma_down / last.sigma).ln() / h;
                let phi_1 = (-h).exp_m1() / -h;
                let phi_2 = (phi_1 - 1.0) / -h;
                let b2 = phi_2 / c2;
                linear(&[(ratio, x), (h * (phi_1 - b2), &x0), (h * b2, &last.x0)])?
            }
        };
        self.last = Some(Last { sigma, sigma_down, x0 });
        cx.with_noise(&x, sigma_up)
    }
}
