//! DDIM with CFG++: arXiv 2406.08070, algorithm 2. The guided image gets the noise of the unconditional prediction.

use super::{Context, Sampler, ddim::posterior_variance};
use crate::tensor::linear;
use crate::{Error, Result};
use candle_core::Tensor;

pub(crate) struct DdimCfgPp;

impl Sampler for DdimCfgPp {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (from, to, eta) = (cx.point, cx.target, cx.eta());
        let (guided, unconditional) = cx.denoiser.denoise_both(x, from)?;
        let unconditional = unconditional.ok_or(Error::NoUnconditional { sampler: cx.schedule.config().sampler })?;
        let eps = linear(&[(1.0 / from.sigma, x), (-from.alpha / from.sigma, &unconditional)])?;
        let fresh = eta * posterior_variance(from, to).sqrt();
        let direction = (to.sigma.powi(2) - fresh.powi(2)).max(0.0).sqrt();
        let x = linear(&[(to.alpha, &guided.x0), (direction, &eps)])?;
        if eta > 0.0 { linear(&[(1.0, &x), (fresh, &cx.noise.sample(&x)?)]) } else { Ok(x) }
    }
}
