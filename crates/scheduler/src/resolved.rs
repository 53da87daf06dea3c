//! What a sampler runs with: plain values, every default filled in.

use crate::{Churn, Convention, InitialNoise, Limit, Prediction, SamplerKind, SigmaRange, SigmaSchedule};

/// A sampler's configuration without gaps.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Resolved {
    /// The sampler.
    pub sampler: SamplerKind,
    /// The length of the training schedule.
    pub num_train_timesteps: usize,
    /// The training schedule.
    pub betas: BetaSchedule,
    /// Whether it is rescaled to zero terminal SNR.
    pub zero_snr: bool,
    /// What the model predicts.
    pub prediction: Prediction,
    /// What is done to a predicted image that is out of range.
    pub limit: Limit,
    /// Which training timesteps are visited.
    pub spacing: Spacing,
    /// Added to each of them for [`Spacing::Leading`].
    pub steps_offset: i64,
    /// The sigma schedule that was asked for.
    pub schedule: SigmaSchedule,
    /// The noise levels between the first and the last.
    pub sigmas: SigmaGrid,
    /// Between which levels they lie.
    pub sigma_range: SigmaRange,
    /// The least noise level of sigma schedules, where it is not the table's.
    pub sigma_min: Option<f64>,
    /// The largest.
    pub sigma_max: Option<f64>,
    /// Whether one level more is made than asked for, and the next-to-last one left out.
    pub discards_penultimate: bool,
    /// What unit noise is multiplied by to be the first latents.
    pub initial_noise: InitialNoise,
    /// The timestep that the model gets at a noise level between two timesteps.
    pub timesteps: TimestepRule,
    /// Whose numbers the schedules `align_your_steps` and `kl_optimal` have.
    pub convention: Convention,
    /// The noise level after the last step.
    pub final_sigma: FinalSigma,
    /// DDIM, PNDM: go to alpha 1 at the end, else to the first training alpha.
    pub set_alpha_to_one: bool,
    /// PNDM: leave out the Runge-Kutta steps.
    pub skip_prk_steps: bool,
    /// DPM-Solver++, UniPC: the multistep solver.
    pub solver: Solver,
    /// DDPM: how much noise is added.
    pub variance: Variance,
    /// LCM, TCD: the timesteps that the model was distilled on.
    pub distilled_timesteps: usize,
    /// LCM: what timesteps are multiplied by in the boundary condition.
    pub timestep_scaling: f64,
    /// How much of the noise is drawn again at each step: 0 is none, 1 as much as DDPM.
    pub eta: f64,
    /// How much the noise level is raised before steps.
    pub churn: Churn,
    /// What noise is multiplied by that is drawn after the first.
    pub s_noise: f64,
    /// The power of the sigma schedules `karras` and `polyexponential`, where it is not their own.
    pub rho: Option<f64>,
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

/// Which training timesteps a short schedule visits: arXiv 2305.08891, table 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spacing {
    /// Multiples of a whole stride from 0, plus an offset.
    Leading,
    /// Down from the last one in equal strides.
    Trailing,
    /// Evenly from the last one to the first one.
    Linspace,
}

/// How the noise levels are laid out.
#[derive(Debug, Clone, PartialEq)]
pub enum SigmaGrid {
    /// The training noise levels of the visited timesteps.
    Training,
    /// Even in `sigma^(1/7)`, arXiv 2206.00364.
    Karras,
    /// Even in `log sigma`, arXiv 2206.00927.
    Lu,
    /// By another sigma schedule.
    Scheduled(SigmaSchedule),
    /// AUTOMATIC1111's own timesteps of DDIM, PLMS and UniPC.
    ///
    /// `range(0, n, n // steps) + 1` of the `n` training timesteps, down to the least one, which is the end. UniPC
    /// has as many evaluations as this list has timesteps, even in time from the noisiest timestep to 0.
    Strided,
    /// These, the noisiest first, without the 0 at the end.
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

    /// The sigma schedule that lays these levels out, where one does.
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
    /// As diffusers' class of the sampler: whole for DPM-Solver++, UniPC, DEIS and DPM2 on the schedules that diffusers
    /// has for them, else a fraction.
    Class,
    /// A fraction, linear in the logarithm of the level: k-diffusion without quantization, AUTOMATIC1111.
    Fraction,
    /// The training timestep whose level has the nearest logarithm: ComfyUI.
    Nearest,
}

/// The noise level after the last step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FinalSigma {
    /// None.
    Zero,
    /// The least training noise level, or [`Resolved::sigma_min`].
    SigmaMin,
    /// 0.001: where ComfyUI's UniPC stops.
    Thousandth,
}

/// The settings of the multistep solvers.
#[derive(Debug, Clone, PartialEq)]
pub struct Solver {
    /// The order: 1 or 2 for DPM-Solver++, 1 to 3 for UniPC and DEIS.
    pub order: usize,
    /// DPM-Solver++: how the second order is reached.
    pub second_order: SecondOrder,
    /// UniPC: the function B(h).
    pub scale: UniPcScale,
    /// Lower the order in the last steps of a short schedule.
    pub lower_order_final: bool,
    /// DPM-Solver++: the last step at first order.
    pub euler_at_final: bool,
    /// DPM-Solver++: no timestep whose log-SNR is below this.
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
