//! The noise levels that a model was trained with.

use crate::flow::Shift;
use crate::spacing::{interpolate, timestep_of};
use crate::training::Training;
use crate::{Process, Resolved, Result};

/// The table of noise levels, the least first: ratios of noise to signal of a diffusion model, and the noise's factors of a
/// flow model.
#[derive(Debug, Clone)]
pub(crate) enum Table {
    Betas(Training),
    Flow {
        sigmas: Vec<f64>,
        log_sigmas: Vec<f64>,
        shift: Shift,
        /// The length of the training schedule.
        train: f64,
    },
}

impl Table {
    /// `finite_sigmas`: whether a zero terminal SNR is kept slightly above zero.
    pub fn new(config: &Resolved, steps: usize, finite_sigmas: bool) -> Result<Self> {
        let train = config.num_train_timesteps;
        Ok(match &config.process {
            Process::Betas { schedule, zero_snr } => {
                Self::Betas(Training::new(schedule, train, *zero_snr, finite_sigmas))
            }
            Process::Flow(flow) => {
                let shift = flow.shift(steps, config.convention)?;
                let length = flow.inputs.table;
                let level = |i: usize| f64::from(shift.apply(i as f64 / length as f64) as f32);
                let sigmas: Vec<f64> = (1..=length).map(level).collect();
                let log_sigmas = sigmas.iter().map(|sigma| sigma.ln()).collect();
                Self::Flow { sigmas, log_sigmas, shift, train: train as f64 }
            }
        })
    }

    pub fn sigmas(&self) -> &[f64] {
        match self {
            Self::Betas(training) => &training.sigmas,
            Self::Flow { sigmas, .. } => sigmas,
        }
    }

    pub fn log_sigmas(&self) -> &[f64] {
        match self {
            Self::Betas(training) => &training.log_sigmas,
            Self::Flow { log_sigmas, .. } => log_sigmas,
        }
    }

    /// The variance of the signal at each training timestep. Empty for a flow model.
    pub fn alphas_cumprod(&self) -> &[f32] {
        match self {
            Self::Betas(training) => &training.alphas_cumprod,
            Self::Flow { .. } => &[],
        }
    }

    /// The largest noise level.
    pub fn max(&self) -> f64 {
        self.sigmas().last().copied().unwrap_or_default()
    }

    /// The timestep of a noise level: of a diffusion model the fractional index in this table, of a flow model the level times
    /// the length of the training schedule.
    pub fn timestep_of(&self, sigma: f64) -> f64 {
        match self {
            Self::Betas(training) => timestep_of(sigma, &training.log_sigmas),
            Self::Flow { train, .. } => sigma * train,
        }
    }

    /// The noise level at a timestep. A flow model's level is shifted: this is not the inverse of [`Self::timestep_of`].
    pub fn level_at(&self, timestep: f64) -> f64 {
        match self {
            Self::Betas(training) => interpolate(&training.log_sigmas, timestep).exp(),
            Self::Flow { shift, train, .. } => shift.apply(timestep / train),
        }
    }
}
