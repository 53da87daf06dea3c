//! Euler's method with CFG++: arXiv 2406.08070, algorithm 2. The guided image gets the noise of the unconditional
//! prediction. With `eta`, fresh noise replaces some of it, as in ComfyUI.

use super::{Context, Sampler, ancestral};
use crate::tensor::linear;
use crate::{Error, Result};
use candle_core::Tensor;

pub(crate) struct EulerCfgPp;

impl Sampler for EulerCfgPp {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (guided, unconditional) = cx.denoiser.denoise_both(x, cx.point)?;
        let unconditional = unconditional.ok_or(Error::NoUnconditional { sampler: cx.schedule.config().sampler })?;
        if cx.target.sigma == 0.0 {
            return Ok(guided.x0);
        }
        let (s, t) = (cx.point, cx.target);
        let d = linear(&[(1.0 / s.sigma, x), (-s.alpha / s.sigma, &unconditional)])?;
        let (down, up) = ancestral(s.ratio(), t.ratio(), cx.eta());
        cx.with_noise(&linear(&[(t.alpha, &guided.x0), (t.alpha * down, &d)])?, t.alpha * up)
    }
}
