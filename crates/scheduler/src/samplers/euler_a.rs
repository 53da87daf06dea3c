//! Ancestral sampling with Euler steps, from k-diffusion: each step goes down further than the next noise level, and
//! fresh noise brings the latents back up to it.

use super::{Context, Sampler, along, slope};
use crate::Result;
use candle_core::Tensor;

pub(crate) struct EulerA;

impl Sampler for EulerA {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let sigma = cx.point.sigma;
        let step = cx.ancestral(cx.point);

        let d = slope(x, &cx.denoise(x)?.x0, sigma)?;
        let x = along(x, &d, step.down - sigma)?;
        if cx.is_flow() {
            return cx.renoised(&x, &step);
        }
        // The last step generates noise too, although its factor is 0: the generator's state then matches diffusers'.
        along(&x, &cx.noise.sample(&x)?, step.up * cx.schedule.config().s_noise)
    }
}
