//! Ancestral sampling with Euler steps, from k-diffusion: go down further than the next noise level,
//! then add fresh noise up to it.

use super::{Context, Sampler, along, slope};
use crate::Result;
use candle_core::Tensor;

pub(crate) struct EulerA;

impl Sampler for EulerA {
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor> {
        let (sigma, sigma_next) = (cx.point.sigma, cx.target.sigma);
        let sigma_up = (sigma_next.powi(2) * (sigma.powi(2) - sigma_next.powi(2)) / sigma.powi(2)).sqrt();
        let sigma_down = (sigma_next.powi(2) - sigma_up.powi(2)).max(0.0).sqrt();

        let d = slope(x, &cx.denoise(x)?.x0, sigma)?;
        let x = along(x, &d, sigma_down - sigma)?;
        // Drawn at the last step too, where its factor is 0: the generator's state is diffusers' as well.
        along(&x, &cx.noise.sample(&x)?, sigma_up)
    }
}
