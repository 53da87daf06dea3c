//! Heun's method: arXiv 2206.00364, algorithm 2. An Euler step is repeated with the mean of the slopes at both of its
//! ends. The last step, to zero noise, is an Euler step only.

use super::{Context, Sampler, along, slope};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

#[derive(Default)]
pub(crate) struct Heun {
    /// An Euler step that is not corrected yet.
    proposed: Option<Proposed>,
}

struct Proposed {
    x: Tensor,
    slope: Tensor,
    d_sigma: f64,
}

impl Sampler for Heun {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let d = slope(x, &cx.denoise(x)?.x0, cx.point.sigma)?;
        if let Some(euler) = self.proposed.take() {
            let mean = linear(&[(0.5, &euler.slope), (0.5, &d)])?;
            return along(&euler.x, &mean, euler.d_sigma);
        }
        let d_sigma = cx.target.sigma - cx.point.sigma;
        let landed = along(x, &d, d_sigma)?;
        self.proposed = Some(Proposed { x: x.clone(), slope: d, d_sigma });
        Ok(landed)
    }
}
