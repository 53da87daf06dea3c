//! A sampler's configuration: plain values with all defaults filled in.

use crate::{Churn, Convention, Flow, InitialNoise, Prediction, SamplerKind, SigmaRange, SigmaSchedule, ThresholdMode};

/// The complete configuration of a sampler.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Resolved {
    /// The sampler.
    pub sampler: SamplerKind,
    /// The length of the training schedule.
    pub num_train_timesteps: usize,
    /// The process that turns latents into noise.
    pub process: Process,
    /// The quantity that the model predicts.
    pub prediction: Prediction,
    /// The treatment of a predicted image that is out of range.
    pub threshold: ThresholdMode,
    /// The training timesteps to visit.
    pub spacing: Spacing,
    /// The offset that is added to each of them for [`Spacing::Leading`].
    pub steps_offset: i64,
    /// The requested sigma schedule.
    pub schedule: SigmaSchedule,
    /// The spacing of the noise levels between the first and the last.
    pub sigmas: SigmaGrid,
    /// The range of the noise levels.
    pub sigma_range: SigmaRange,
    /// The least noise level of sigma schedules, if it is not the table's.
    pub sigma_min: Option<f64>,
    /// The largest noise level of sigma schedules, if it is not the table's.
    pub sigma_max: Option<f64>,
    /// Whether one level more than requested is computed, and the next-to-last one removed.
    pub discards_penultimate: bool,
    /// The rule for the factor that scales unit noise to the first latents.
    pub initial_noise: InitialNoise,
    /// The timestep that the model gets at a noise level between two timesteps.
    pub timesteps: TimestepRule,
    /// The program whose numbers the schedules `align_your_steps` and `kl_optimal` use.
    pub convention: Convention,
    /// The noise level after the last step.
    pub final_sigma: FinalSigma,
    /// DDIM, PNDM: whether the last step goes to alpha 1, else to the first training alpha.
    pub set_alpha_to_one: bool,
    /// PNDM: omit the Runge-Kutta steps.
    pub skip_prk_steps: bool,
    /// DPM-Solver++, UniPC: the multistep solver.
    pub solver: Solver,
    /// DDPM: the variance of the added noise.
    pub variance: Variance,
    /// LCM, TCD: the number of timesteps that the model was distilled on.
    pub distilled_timesteps: usize,
    /// LCM, TCD: the part of these timesteps, from the end, over which a schedule is spread: below 1 where an image to begin
    /// with takes the place of the others (`strength` of diffusers' `LCMScheduler.set_timesteps`). More than 0, at most 1.
    pub distilled_part: f64,
    /// LCM: the factor of timesteps in the boundary condition.
    pub timestep_scaling: f64,
    /// The share of the noise that is replaced with fresh noise at each step: 0 is none, 1 is as in DDPM.
    pub eta: f64,
    /// The increase of the noise level before steps.
    pub churn: Churn,
    /// The factor of the noise that is added after the start.
    pub s_noise: f64,
    /// The power of the sigma schedules `karras` and `polyexponential`, if it is not their default.
    pub rho: Option<f64>,
}

impl Resolved {
    /// The flow, if the model is a flow model.
    pub fn flow(&self) -> Option<&Flow> {
        match &self.process {
            Process::Flow(flow) => Some(flow),
            Process::Betas { .. } => None,
        }
    }

    /// Whether the model is a flow model.
    pub fn is_flow(&self) -> bool {
        self.flow().is_some()
    }

    /// Whether the sampler steps from timestep to timestep and preserves the latents' variance, as DDIM does. On a flow model
    /// no sampler does: LCM has noise levels there.
    pub fn is_on_timesteps(&self) -> bool {
        self.sampler.is_on_timesteps() && !self.is_flow()
    }

    /// LCM and TCD on the timesteps of their distillation: each how many-th training timestep these are, and how many a schedule
    /// is spread over.
    pub fn distilled(&self) -> Option<(usize, usize)> {
        let of_class = matches!(self.sampler, SamplerKind::Lcm | SamplerKind::Tcd)
            && self.sigmas == SigmaGrid::Training
            && !self.is_flow();
        of_class.then(|| {
            let kept = (self.distilled_timesteps as f64 * self.distilled_part) as usize; // Python's `int`
            (self.num_train_timesteps / self.distilled_timesteps.max(1), kept)
        })
    }
}

/// The process that turns latents into noise.
#[derive(Debug, Clone, PartialEq)]
pub enum Process {
    /// Diffusion: `x = sqrt(a) x0 + sqrt(1 - a) eps`, where `a` is the running product of `1 - beta`.
    Betas {
        /// The training schedule.
        schedule: BetaSchedule,
        /// Whether it is rescaled to zero terminal SNR.
        zero_snr: bool,
    },
    /// Flow matching: `x = (1 - sigma) x0 + sigma eps`, arXiv 2210.02747.
    Flow(Flow),
}

/// The training betas.
#[derive(Debug, Clone, PartialEq)]
pub enum BetaSchedule {
    /// Even steps between two betas.
    Linear {
        /// The first.
        start: f64,
        /// The last.
        end: f64,
    },
    /// Even steps between the roots of two betas: latent diffusion's schedule.
    ScaledLinear {
        /// The first.
        start: f64,
        /// The last.
        end: f64,
    },
    /// The cosine schedule of arXiv 2102.09672, betas capped at 0.999.
    SquaredCosCapV2,
    /// Betas given one by one.
    Trained(Vec<f32>),
}

/// The training timesteps that a short schedule visits: arXiv 2305.08891, table 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// Multiples of a whole stride from 0, plus an offset.
    Leading,
    /// Down from the last one in equal strides.
    Trailing,
    /// Evenly from the last one to the first one.
    Linspace,
}

/// The spacing of the noise levels.
#[derive(Debug, Clone, PartialEq)]
pub enum SigmaGrid {
    /// The training noise levels of the visited timesteps.
    Training,
    /// Even in `sigma^(1/7)`, arXiv 2206.00364.
    Karras,
    /// Even in `log sigma`, arXiv 2206.00927.
    Lu,
    /// The levels of another sigma schedule.
    Scheduled(SigmaSchedule),
    /// AUTOMATIC1111's own timesteps of DDIM, PLMS and UniPC.
    ///
    /// `range(0, n, n // steps) + 1` of the `n` training timesteps, down to the least one, which is the end. UniPC has
    /// as many evaluations as this list has timesteps, evenly spaced in time from the noisiest timestep to 0.
    Strided,
    /// A list of levels, the noisiest first, without the 0 at the end.
    Custom(Vec<f64>),
}

impl SigmaGrid {
    /// The levels of a sigma schedule that is not [`SigmaSchedule::Default`].
    pub(crate) fn of(schedule: SigmaSchedule) -> Self {
        match schedule {
            SigmaSchedule::Karras => Self::Karras,
            other => Self::Scheduled(other),
        }
    }

    /// The sigma schedule that defines these levels, if any.
    pub(crate) fn schedule(&self) -> Option<SigmaSchedule> {
        match self {
            Self::Karras => Some(SigmaSchedule::Karras),
            Self::Scheduled(schedule) => Some(*schedule),
            _ => None,
        }
    }
}

/// The timestep that the model gets at a noise level between two training timesteps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimestepRule {
    /// The rule of the sampler's diffusers class: whole for DPM-Solver++, UniPC, DEIS and DPM2 with the schedules that
    /// diffusers has for them, else a fraction.
    Class,
    /// A fraction, linear in the logarithm of the level: k-diffusion without quantization, AUTOMATIC1111.
    Fraction,
    /// The training timestep whose level has the nearest logarithm: ComfyUI.
    Nearest,
}

/// The noise level after the last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalSigma {
    /// Zero noise.
    Zero,
    /// The least training noise level, or [`Resolved::sigma_min`].
    SigmaMin,
    /// 0.001: the last level of ComfyUI's UniPC.
    Thousandth,
    /// The level before it again.
    Repeated,
}

/// The settings of the multistep solvers.
#[derive(Debug, Clone, PartialEq)]
pub struct Solver {
    /// The order: 1 or 2 for DPM-Solver++, 1 to 3 for UniPC and DEIS.
    pub order: usize,
    /// DPM-Solver++: the rule of second order.
    pub second_order: SecondOrder,
    /// UniPC: the function B(h).
    pub scale: UniPcScale,
    /// Lower the order in the last steps of a short schedule.
    pub lower_order_final: bool,
    /// DPM-Solver++: whether the last step has first order.
    pub euler_at_final: bool,
    /// DPM-Solver++: the least log-SNR of the timesteps.
    pub lambda_min_clipped: f64,
    /// UniPC: the steps after which the corrector is off.
    pub disable_corrector: Vec<usize>,
}

/// The two second order updates of DPM-Solver++.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondOrder {
    /// The midpoint rule.
    Midpoint,
    /// Heun's rule.
    Heun,
}

/// UniPC's function B(h), arXiv 2302.04867 section 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UniPcScale {
    /// `B(h) = h`.
    Bh1,
    /// `B(h) = e^h - 1`.
    Bh2,
}

/// DDPM's noise, arXiv 2006.11239 section 3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variance {
    /// The variance of the posterior given x0.
    FixedSmall,
    /// Beta.
    FixedLarge,
}
