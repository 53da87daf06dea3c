//! Latent consistency models, multistep: arXiv 2310.04378, algorithm 3. Each step takes the predicted image directly,
//! mixed with a little of the latents by the boundary condition, and adds noise for the next timestep.

use super::{Context, Sampler};
use crate::Result;
use crate::tensor::linear;
use candle_core::Tensor;

/// The standard deviation in both functions of the boundary condition: section 4.1.
const SIGMA_DATA: f64 = 0.5;

pub(crate) struct Lcm;

impl Sampler for Lcm {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let image = self.image(x, cx)?;
        if cx.target.sigma == 0.0 {
            return Ok(image);
        }
        linear(&[(cx.target.alpha, &image), (cx.target.sigma, &cx.noise.sample(x)?)])
    }
}

impl Lcm {
    /// The image that the model predicts, by the boundary condition. A flow model's velocity needs none.
    fn image(&self, x: &Tensor, cx: &Context<'_>) -> Result<Tensor> {
        if cx.is_flow() {
            return Ok(cx.denoise(x)?.x0);
        }
        let t = cx.point.timestep * cx.schedule.config().timestep_scaling;
        let variance = t.powi(2) + SIGMA_DATA.powi(2);
        let (c_skip, c_out) = (SIGMA_DATA.powi(2) / variance, t / variance.sqrt());
        linear(&[(c_out, &cx.denoise(x)?.x0), (c_skip, x)])
    }
}
