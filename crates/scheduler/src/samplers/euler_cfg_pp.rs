//! Euler's method with CFG++: arXiv 2406.08070, algorithm 2. The guided image gets the noise of the unconditional
//! prediction. With `eta`, fresh noise replaces some of it, as in ComfyUI.

use super::{Context, Sampler, ancestral, slope};
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
        let d = slope(x, &unconditional, cx.point.sigma)?;
        let (sigma_down, sigma_up) = ancestral(cx.point.sigma, cx.target.sigma, cx.eta());
        cx.with_noise(&linear(&[(1.0, &guided.x0), (sigma_down, &d)])?, sigma_up)
    }
}
