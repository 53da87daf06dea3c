//! The samplers, one file each. Each takes the latents at `cx.point`, asks the model once, and gives the
//! latents that diffusers' scheduler of that name gives.

mod ddim;
mod ddpm;
mod dpmpp_2m;
mod euler;
mod euler_a;
mod heun;
mod lms;
mod pndm;
mod unipc;

use crate::tensor::linear;
use crate::{Denoised, Denoiser, NoiseSource, Point, Resolved, Result, SamplerKind, Schedule};
use candle_core::Tensor;

/// A sampler between two steps: what it remembers of the steps before.
pub(crate) trait Sampler {
    /// The latents after the step from `cx.point`.
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor>;
}

/// What a sampler has to hand during one step.
pub(crate) struct Context<'a> {
    pub schedule: &'a Schedule,
    /// This evaluation's index in the schedule.
    pub index: usize,
    /// Where the latents are.
    pub point: Point,
    /// Where the step leads.
    pub target: Point,
    pub denoiser: Denoiser<'a>,
    pub noise: &'a mut dyn NoiseSource,
}

impl Context<'_> {
    /// The image and the noise that the model sees in `x`.
    fn denoise(&mut self, x: &Tensor) -> Result<Denoised> {
        self.denoiser.denoise(x, self.point)
    }
}

/// A sampler before its first step.
pub(crate) fn new(config: &Resolved) -> Box<dyn Sampler> {
    match config.sampler {
        SamplerKind::Ddim => Box::new(ddim::Ddim),
        SamplerKind::Euler => Box::new(euler::Euler),
        SamplerKind::EulerA => Box::new(euler_a::EulerA),
        SamplerKind::Dpmpp2m => Box::new(dpmpp_2m::Dpmpp2m::default()),
        SamplerKind::Pndm => Box::new(pndm::Pndm::default()),
        SamplerKind::Heun => Box::new(heun::Heun::default()),
        SamplerKind::Lms => Box::new(lms::Lms::default()),
        SamplerKind::UniPc => Box::new(unipc::UniPc::default()),
        SamplerKind::Ddpm => Box::new(ddpm::Ddpm),
    }
}

/// The slope `dx / d sigma` of the probability flow ODE, arXiv 2206.00364 equation 3 with alpha 1.
fn slope(x: &Tensor, x0: &Tensor, sigma: f64) -> Result<Tensor> {
    linear(&[(1.0 / sigma, x), (-1.0 / sigma, x0)])
}

/// `x` moved along `slope` by `d_sigma`.
fn along(x: &Tensor, slope: &Tensor, d_sigma: f64) -> Result<Tensor> {
    linear(&[(1.0, x), (d_sigma, slope)])
}
