//! The samplers, one file each. Each takes the latents at `cx.point`, asks the model once, and gives the
//! latents that diffusers' scheduler of that name gives, or k-diffusion's function where diffusers has none.
//!
//! A sampler that asks twice a step is called twice: in between, the latents are at the second point, and
//! it remembers where the step began.

mod ddim;
mod ddim_cfg_pp;
mod ddpm;
mod deis;
mod dpm2;
mod dpmpp_2m;
mod dpmpp_2m_sde;
mod dpmpp_2s_a;
mod dpmpp_3m_sde;
mod dpmpp_sde;
mod er_sde;
mod euler;
mod euler_a;
mod euler_cfg_pp;
mod heun;
mod heunpp2;
mod ipndm;
mod lcm;
mod lms;
mod pndm;
mod res_multistep;
mod tcd;
mod unipc;

use crate::tensor::linear;
use crate::{Denoised, Denoiser, NoiseSource, Point, Resolved, Result, SamplerKind, Schedule};
use candle_core::Tensor;

/// A sampler between two steps: what it remembers of the steps before.
pub(crate) trait Sampler: Send {
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
    pub denoiser: Denoiser,
    pub noise: &'a mut dyn NoiseSource,
}

impl Context<'_> {
    /// The image and the noise that the model sees in `x`.
    fn denoise(&self, x: &Tensor) -> Result<Denoised> {
        self.denoiser.denoise(x, self.point)
    }

    /// Whether the model is not asked again in this step.
    fn is_last_of_step(&self) -> bool {
        !self.schedule.is_first_of_two(self.index)
    }

    /// Whether the step asks the model once more, at `target`.
    fn is_first_of_two(&self) -> bool {
        self.schedule.is_first_of_two(self.index)
    }

    fn eta(&self) -> f64 {
        self.schedule.config().eta
    }

    /// The latents with fresh noise. Nothing is drawn where there is none to add.
    fn with_noise(&mut self, x: &Tensor, sigma: f64) -> Result<Tensor> {
        if sigma == 0.0 {
            return Ok(x.clone());
        }
        linear(&[(1.0, x), (sigma * self.schedule.config().s_noise, &self.noise.sample(x)?)])
    }

    /// The latents with what the image's Brownian path does between two noise levels, as noise of this level.
    fn with_path(&mut self, x: &Tensor, (from, to): (f64, f64), sigma: f64) -> Result<Tensor> {
        if sigma == 0.0 {
            return Ok(x.clone());
        }
        let noise = self.noise.along_path(x, self.schedule.range(), from, to)?;
        linear(&[(1.0, x), (sigma * self.schedule.config().s_noise, &noise)])
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
        SamplerKind::Heun | SamplerKind::Restart => Box::new(heun::Heun::default()),
        SamplerKind::HeunPp2 => Box::new(heunpp2::HeunPp2::default()),
        SamplerKind::DdimCfgPp => Box::new(ddim_cfg_pp::DdimCfgPp),
        SamplerKind::Lms => Box::new(lms::Lms::default()),
        SamplerKind::UniPc => Box::new(unipc::UniPc::default()),
        SamplerKind::Ddpm => Box::new(ddpm::Ddpm),
        SamplerKind::Dpm2 | SamplerKind::Dpm2A => Box::new(dpm2::Dpm2::default()),
        SamplerKind::Dpmpp2sA => Box::new(dpmpp_2s_a::Dpmpp2sA::default()),
        SamplerKind::DpmppSde => Box::new(dpmpp_sde::DpmppSde::default()),
        SamplerKind::Dpmpp2mSde | SamplerKind::Dpmpp2mSdeHeun => Box::new(dpmpp_2m_sde::Dpmpp2mSde::default()),
        SamplerKind::Dpmpp3mSde => Box::new(dpmpp_3m_sde::Dpmpp3mSde::default()),
        SamplerKind::Deis => Box::new(deis::Deis::default()),
        SamplerKind::Lcm => Box::new(lcm::Lcm),
        SamplerKind::Tcd => Box::new(tcd::Tcd),
        SamplerKind::Ipndm => Box::new(ipndm::Ipndm::default()),
        SamplerKind::ResMultistep | SamplerKind::ResMultistepA => Box::new(res_multistep::ResMultistep::default()),
        SamplerKind::ErSde => Box::new(er_sde::ErSde::default()),
        SamplerKind::EulerCfgPp | SamplerKind::EulerACfgPp => Box::new(euler_cfg_pp::EulerCfgPp),
    }
}

/// The noise level at which a sampler of second order asks the model again in a step between two noise levels;
/// `None` where it asks once. Heun++ asks a third time, at the end of the next step.
pub(crate) fn second_evaluation(config: &Resolved, sigma: f64, sigma_next: f64) -> Option<f64> {
    let (sigma_down, _) = ancestral(sigma, sigma_next, config.eta);
    let middle = |target: f64| (target > 0.0).then(|| (sigma * target).sqrt());
    match config.sampler {
        SamplerKind::Heun | SamplerKind::Restart | SamplerKind::HeunPp2 => (sigma_next > 0.0).then_some(sigma_next),
        SamplerKind::Dpm2 | SamplerKind::Dpm2A | SamplerKind::Dpmpp2sA => middle(sigma_down),
        SamplerKind::DpmppSde => (sigma_next > 0.0).then(|| dpmpp_sde::middle(sigma, sigma_next)),
        _ => None,
    }
}

/// How far down a step goes so that fresh noise leads up to `sigma_next`, and the level of that noise:
/// DDIM's equation 16 with alpha 1, as k-diffusion has it. `eta` 0 needs no noise.
fn ancestral(sigma: f64, sigma_next: f64, eta: f64) -> (f64, f64) {
    let posterior = (sigma_next.powi(2) * (sigma.powi(2) - sigma_next.powi(2)) / sigma.powi(2)).sqrt();
    let sigma_up = (eta * posterior).min(sigma_next);
    ((sigma_next.powi(2) - sigma_up.powi(2)).max(0.0).sqrt(), sigma_up)
}

/// The slope `dx / d sigma` of the probability flow ODE, arXiv 2206.00364 equation 3 with alpha 1.
fn slope(x: &Tensor, x0: &Tensor, sigma: f64) -> Result<Tensor> {
    linear(&[(1.0 / sigma, x), (-1.0 / sigma, x0)])
}

/// `x` moved along `slope` by `d_sigma`.
fn along(x: &Tensor, slope: &Tensor, d_sigma: f64) -> Result<Tensor> {
    linear(&[(1.0, x), (d_sigma, slope)])
}
