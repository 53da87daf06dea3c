//! Flow models: the shift of their noise levels, and the levels of diffusers' classes.
//!
//! `x = (1 - sigma) x0 + sigma eps` from `sigma` 1 to 0, arXiv 2210.02747. A shift moves more of the steps to high noise, the
//! more the larger the image is: arXiv 2403.03206, section 5.3.2.

mod config;

use crate::spacing::linspace;
use crate::{Convention, Error, Resolved, Result, SamplerKind, limits};

/// The flow of a model, with all defaults filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Flow {
    /// The shift of the noise levels.
    pub shift: FlowShift,
    /// The level to which the last level of a schedule is stretched, if any.
    pub terminal: Option<f64>,
    /// The values that the configuration does not have.
    pub inputs: FlowInputs,
}

/// The values that a flow model's family and a request add to its `scheduler_config.json`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowInputs {
    /// The number of the image's tokens, without text and reference images: `height * width / 256` for all families with
    /// latents of an eighth of the size and patches of 2 by 2. A dynamic shift needs it.
    pub image_tokens: Option<usize>,
    /// A static shift instead of the model's shift, which may be dynamic.
    pub shift: Option<f64>,
    /// The levels before the shift.
    pub grid: FlowGrid,
    /// The rule for the exponent of a dynamic shift.
    pub mu: FlowMu,
    /// The length of the table of levels that A1111 and ComfyUI have for this family: 1,000, and 10,000 for FLUX.
    pub table: usize,
    /// The exponent of these programs' shift for every size, if they do not use the model's shift: 1.15 for FLUX.
    pub table_mu: Option<f64>,
}

impl Default for FlowInputs {
    fn default() -> Self {
        let (grid, mu) = (FlowGrid::Ends, FlowMu::Interpolated);
        Self { image_tokens: None, shift: None, grid, mu, table: 1000, table_mu: None }
    }
}

/// The levels of `FlowMatchEulerDiscreteScheduler` before the shift. They depend on the pipeline that calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowGrid {
    /// Even between the largest and the least level of the class, which has shifted these already: Stable Diffusion 3.
    Ends,
    /// Even from 1 to `1 / steps`: the pipelines that pass `sigmas`, of FLUX, FLUX.2, Z-Image, Chroma and Qwen-Image.
    Even,
}

/// The exponent of a dynamic shift.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowMu {
    /// On the line through the two points of the configuration: `calculate_shift` of diffusers' pipelines.
    Interpolated,
    /// FLUX.2's fit, which depends on the number of steps too: `compute_empirical_mu` of diffusers' `pipeline_flux2_klein.py`.
    Empirical,
}

/// The shift of a configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FlowShift {
    /// `s t / (1 + (s - 1) t)` with this `s`.
    Static(f64),
    /// A shift by the number of image tokens.
    Dynamic {
        /// A number of image tokens and its exponent.
        base: (usize, f64),
        /// Another number of image tokens and its exponent.
        max: (usize, f64),
        /// The use of the exponent.
        form: TimeShift,
    },
}

/// The use of the exponent `mu` in a dynamic shift `f / (f + 1 / t - 1)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeShift {
    /// `f = exp(mu)`.
    Exponential,
    /// `f = mu`.
    Linear,
}

/// A shift as a function of the level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Shift {
    /// `s t / (1 + (s - 1) t)`.
    Static(f64),
    /// `f / (f + 1 / t - 1)`: equal in exact arithmetic.
    Dynamic(f64),
}

impl Shift {
    /// The shifted level of `t`, which is between 0 and 1.
    pub(crate) fn apply(self, t: f64) -> f64 {
        match self {
            Self::Static(s) => s * t / (1.0 + (s - 1.0) * t),
            Self::Dynamic(f) => f / (f + (1.0 / t - 1.0)),
        }
    }

    fn factor(self) -> f64 {
        let (Self::Static(factor) | Self::Dynamic(factor)) = self;
        factor
    }
}

impl Flow {
    /// The shift for `steps` steps by the rules of a program.
    ///
    /// # Errors
    /// [`Error::NoImageTokens`] if the shift depends on the number of image tokens, and it is not set; [`Error::Option`] if the
    /// shift is out of range with it.
    pub(crate) fn shift(&self, steps: usize, convention: Convention) -> Result<Shift> {
        if let Some(shift) = self.inputs.shift {
            return Ok(Shift::Static(shift));
        }
        if let Some(mu) = self.inputs.table_mu.filter(|_| convention != Convention::Diffusers) {
            return Ok(Shift::Dynamic(mu.exp()));
        }
        let (base, max, form) = match self.shift {
            FlowShift::Static(shift) => return Ok(Shift::Static(shift)),
            FlowShift::Dynamic { base, max, form } => (base, max, form),
        };
        let tokens = self.inputs.image_tokens.ok_or(Error::NoImageTokens)? as f64;
        let mu = match self.inputs.mu {
            FlowMu::Interpolated => {
                let slope = (max.1 - base.1) / (max.0 as f64 - base.0 as f64);
                tokens * slope + (base.1 - slope * base.0 as f64)
            }
            FlowMu::Empirical => empirical_mu(tokens, steps as f64),
        };
        let factor = match form {
            TimeShift::Exponential => mu.exp(),
            TimeShift::Linear => mu,
        };
        let (least, most) = limits::SHIFT;
        if !(least..=most).contains(&factor) {
            let expected = format!("a number for which the model's shift is between {least} and {most}");
            return Err(Error::Option { option: "image_tokens", value: tokens.to_string(), expected });
        }
        Ok(Shift::Dynamic(factor))
    }

    /// The `steps` levels of the sampler's diffusers class after the shift, the noisiest first and without the end. `train` is
    /// the length of the training schedule.
    pub(crate) fn levels(&self, sampler: SamplerKind, (steps, train): (usize, f64), shift: Shift) -> Vec<f64> {
        let class = SolverClass::of(sampler);
        let least = 1.0 / train;
        let mut levels: Vec<f64> = match class {
            SolverClass::DpmSolver => {
                // This class has the static form for both kinds of shift.
                let shift = Shift::Static(shift.factor());
                let shifted = linspace(1.0, least, steps + 1).into_iter().map(|alpha| shift.apply(1.0 - alpha));
                return shifted.rev().take(steps).collect();
            }
            SolverClass::UniPc => linspace(1.0, least, steps + 1).into_iter().take(steps).collect(),
            SolverClass::Euler if self.inputs.grid == FlowGrid::Even => linspace(1.0, 1.0 / steps as f64, steps),
            SolverClass::Euler => {
                // The class stores its ends in f32.
                let end = |t: f64| match shift {
                    Shift::Static(_) => f64::from(shift.apply(t) as f32),
                    Shift::Dynamic(_) => f64::from(t as f32),
                };
                linspace(end(1.0) * train, end(least) * train, steps).into_iter().map(|t| t / train).collect()
            }
        };
        levels.iter_mut().for_each(|level| *level = shift.apply(*level));
        if let Some(terminal) = self.terminal {
            let last = levels.last().copied().unwrap_or(1.0);
            let scale = (1.0 - last) / (1.0 - terminal);
            // A single level is 1, and stays.
            if scale > 0.0 {
                levels.iter_mut().for_each(|level| *level = 1.0 - (1.0 - *level) / scale);
            }
        }
        levels
    }
}

impl Resolved {
    /// The configuration with the values that a flow model's family and a request add. Other models do not use them.
    ///
    /// # Errors
    /// [`Error::Option`] if the shift or the length of the table is out of range.
    pub fn with_flow(mut self, inputs: FlowInputs) -> Result<Self> {
        let (least, most) = limits::SHIFT;
        if let Some(shift) = inputs.shift.filter(|shift| !(least..=most).contains(shift)) {
            let expected = format!("a number from {least} to {most}");
            return Err(Error::Option { option: "shift", value: crate::number_text(shift), expected });
        }
        if !(2..=limits::FLOW_TABLE).contains(&inputs.table) {
            let expected = format!("a number from 2 to {}", limits::FLOW_TABLE);
            return Err(Error::Option { option: "table", value: inputs.table.to_string(), expected });
        }
        if let crate::Process::Flow(flow) = &mut self.process {
            flow.inputs = inputs;
        }
        Ok(self)
    }
}

/// The diffusers class whose flow levels a sampler has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SolverClass {
    /// `FlowMatchEulerDiscreteScheduler`, also for samplers that no class implements.
    Euler,
    /// `DPMSolverMultistepScheduler`, and `DEISMultistepScheduler`, which has equal levels.
    DpmSolver,
    /// `UniPCMultistepScheduler`.
    UniPc,
}

impl SolverClass {
    pub(crate) fn of(sampler: SamplerKind) -> Self {
        match sampler {
            SamplerKind::Dpmpp2m | SamplerKind::Dpmpp2mSde | SamplerKind::Dpmpp2mSdeHeun | SamplerKind::Deis => {
                Self::DpmSolver
            }
            SamplerKind::UniPc => Self::UniPc,
            _ => Self::Euler,
        }
    }
}

/// FLUX.2's exponent: between fits for 10 and for 200 steps, and for more than 4,300 tokens the latter.
fn empirical_mu(tokens: f64, steps: f64) -> f64 {
    let mu_200 = 0.00016927 * tokens + 0.45666666;
    if tokens > 4300.0 {
        return mu_200;
    }
    let mu_10 = 8.73809524e-05 * tokens + 1.89833333;
    let slope = (mu_200 - mu_10) / 190.0;
    slope * steps + (mu_200 - 200.0 * slope)
}
