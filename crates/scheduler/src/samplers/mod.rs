//! The samplers, one file each. Each takes the latents at `cx.point`, evaluates the model once, and returns the latents
//! that diffusers' scheduler of that name returns, or k-diffusion's function where diffusers has none.
//!
//! A sampler that evaluates the model twice a step is called twice. In between, the latents are at the second point,
//! and the sampler stores the start of the step.

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
use crate::{Convention, Denoised, Denoiser, NoiseSource, Point, Resolved, Result, SamplerKind, Schedule};
use candle_core::Tensor;

/// The state of a sampler between two steps.
pub(crate) trait Sampler: Send {
    /// The latents after the step from `cx.point`.
    fn step(&mut self, x: &Tensor, cx: &mut Context<'_>) -> Result<Tensor>;
}

/// The inputs of one step.
pub(crate) struct Context<'a> {
    pub schedule: &'a Schedule,
    /// This evaluation's index in the schedule.
    pub index: usize,
    /// The point of the latents.
    pub point: Point,
    /// The point at the end of the step.
    pub target: Point,
    pub denoiser: Denoiser,
    pub noise: &'a mut dyn NoiseSource,
}

impl Context<'_> {
    /// The image and the noise that the model predicts for `x`.
    fn denoise(&self, x: &Tensor) -> Result<Denoised> {
        self.denoiser.denoise(x, self.point)
    }

    /// Whether this is the last model evaluation of the step.
    fn is_last_of_step(&self) -> bool {
        !self.schedule.is_first_of_two(self.index)
    }

    /// Whether the step evaluates the model once more, at `target`.
    fn is_first_of_two(&self) -> bool {
        self.schedule.is_first_of_two(self.index)
    }

    fn eta(&self) -> f64 {
        self.schedule.config().eta
    }

    fn is_flow(&self) -> bool {
        self.schedule.config().is_flow()
    }

    /// The point as multistep solvers count it. k-diffusion's and ComfyUI's solvers see flow models as variance exploding.
    fn solver_point(&self, point: Point) -> Point {
        let config = self.schedule.config();
        let explodes = config.is_flow() && config.convention != Convention::Diffusers;
        if explodes { Point::exploding(point.timestep, point.sigma) } else { point }
    }

    /// The ancestral step from `from` to the target.
    fn ancestral(&self, from: Point) -> Ancestral {
        ancestral_step(self.schedule.config(), from, self.target)
    }

    /// Brings the latents at the end of an ancestral step back up.
    fn renoised(&mut self, x: &Tensor, step: &Ancestral) -> Result<Tensor> {
        if step.up == 0.0 {
            return Ok(x.clone());
        }
        linear(&[(step.scale, x), (step.up * self.schedule.config().s_noise, &self.noise.sample(x)?)])
    }

    /// Adds fresh noise to the latents. No noise is generated where its factor is 0.
    fn with_noise(&mut self, x: &Tensor, sigma: f64) -> Result<Tensor> {
        if sigma == 0.0 {
            return Ok(x.clone());
        }
        linear(&[(1.0, x), (sigma * self.schedule.config().s_noise, &self.noise.sample(x)?)])
    }

    /// Adds the increment of the images' Brownian paths between two noise levels, scaled to noise of level `sigma`.
    fn with_path(&mut self, x: &Tensor, (from, to): (f64, f64), sigma: f64) -> Result<Tensor> {
        if sigma == 0.0 {
            return Ok(x.clone());
        }
        let noise = self.noise.brownian_increment(x, self.schedule.range(), from, to)?;
        linear(&[(1.0, x), (sigma * self.schedule.config().s_noise, &noise)])
    }
}

/// A sampler in its initial state.
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

/// The noise level of the second model evaluation in a step between two points. `None` for one evaluation. Heun++ has a
/// third one, at the end of the next step.
pub(crate) fn second_evaluation(config: &Resolved, from: Point, to: Point) -> Option<f64> {
    let (sigma, sigma_next) = (from.sigma, to.sigma);
    let sigma_down = ancestral_step(config, from, to).down;
    let middle = |target: f64| (target > 0.0).then(|| (sigma * target).sqrt());
    match config.sampler {
        SamplerKind::Dpmpp2sA if config.is_flow() => dpmpp_2s_a::flow_middle(sigma, sigma_down),
        SamplerKind::DpmppSde if config.is_flow() => flow_middle(sigma, sigma_next),
        SamplerKind::Heun | SamplerKind::Restart | SamplerKind::HeunPp2 => (sigma_next > 0.0).then_some(sigma_next),
        SamplerKind::Dpm2 | SamplerKind::Dpm2A | SamplerKind::Dpmpp2sA => middle(sigma_down),
        SamplerKind::DpmppSde => (sigma_next > 0.0).then(|| dpmpp_sde::middle(sigma, sigma_next)),
        _ => None,
    }
}

/// The level to which a step goes down so that fresh noise brings it back up to `sigma_next`, and the level of that
/// noise: DDIM's equation 16 with alpha 1, as in k-diffusion. `eta` 0 needs no noise. A flow model's levels are ratios of noise
/// to signal here, of which the first one may be infinite.
fn ancestral(sigma: f64, sigma_next: f64, eta: f64) -> (f64, f64) {
    if sigma.is_infinite() {
        return ((1.0 - eta.min(1.0).powi(2)).sqrt() * sigma_next, eta.min(1.0) * sigma_next);
    }
    let posterior = (sigma_next.powi(2) * (sigma.powi(2) - sigma_next.powi(2)) / sigma.powi(2)).sqrt();
    let sigma_up = (eta * posterior).min(sigma_next);
    ((sigma_next.powi(2) - sigma_up.powi(2)).max(0.0).sqrt(), sigma_up)
}

/// An ancestral step: down to the noise level `down`, then times `scale` plus noise of the level `up`.
struct Ancestral {
    down: f64,
    scale: f64,
    up: f64,
}

/// The ancestral step between two points. A flow model's latents also scale with the signal: `sample_euler_ancestral_RF` in
/// ComfyUI's `k_diffusion/sampling.py`.
fn ancestral_step(config: &Resolved, from: Point, to: Point) -> Ancestral {
    if !config.is_flow() {
        let (down, up) = ancestral(from.sigma, to.sigma, config.eta);
        return Ancestral { down, scale: 1.0, up };
    }
    let down = to.sigma * (1.0 + (to.sigma / from.sigma - 1.0) * config.eta);
    let scale = to.alpha / (1.0 - down);
    Ancestral { down, scale, up: (to.sigma.powi(2) - (down * scale).powi(2)).max(0.0).sqrt() }
}

/// The noise level of a flow model half-way in log-SNR between two levels. `None` at the end, without noise.
fn flow_middle(sigma: f64, sigma_next: f64) -> Option<f64> {
    let lambda = |sigma: f64| Point::flow(0.0, sigma).lambda();
    (sigma_next > 0.0).then(|| 1.0 / (1.0 + (0.5 * (lambda(sigma) + lambda(sigma_next))).exp()))
}

/// The slope `dx / d sigma` of the probability flow ODE, arXiv 2206.00364 equation 3 with alpha 1. Of a flow model it is the
/// velocity.
fn slope(x: &Tensor, x0: &Tensor, sigma: f64) -> Result<Tensor> {
    linear(&[(1.0 / sigma, x), (-1.0 / sigma, x0)])
}

/// `x` moved along `slope` by `d_sigma`.
fn along(x: &Tensor, slope: &Tensor, d_sigma: f64) -> Result<Tensor> {
    linear(&[(1.0, x), (d_sigma, slope)])
}
