//! The configuration of a flow model's sampler.

use super::{Flow, FlowInputs, FlowShift, SolverClass, TimeShift};
use crate::class::class;
use crate::kind::FLOW_CLASSES;
use crate::resolve::unsupported;
use crate::{
    Churn, Convention, Error, FinalSigma, FlowForm, InitialNoise, Prediction, Process, Resolved, Result, SamplerKind,
    SchedulerConfig, SigmaGrid, SigmaRange, SigmaSchedule, Spacing, ThresholdMode, TimestepRule, Variance, limits,
};

impl SchedulerConfig {
    /// Whether the configuration is a flow model's: that of a class for flow models alone, or with `use_flow_sigmas` and
    /// `flow_prediction`.
    pub fn is_flow(&self) -> bool {
        self.has_flow_class()
            || (self.use_flow_sigmas == Some(true) && self.prediction_type.as_deref() == Some("flow_prediction"))
    }

    fn has_flow_class(&self) -> bool {
        self.class_name.as_deref().is_some_and(|class| FLOW_CLASSES.iter().any(|(name, _)| *name == class))
    }

    /// The configuration with which `kind` runs a flow model.
    ///
    /// Samplers with a diffusers class that has flow options get that class's levels. All others get those of
    /// `FlowMatchEulerDiscreteScheduler`.
    pub(crate) fn resolve_flow(&self, kind: SamplerKind, schedule: SigmaSchedule) -> Result<Resolved> {
        if kind.flow() == FlowForm::Refused {
            return Err(Error::FlowSampler { sampler: kind });
        }
        if !schedule.works_for_flow() {
            return Err(Error::FlowSchedule { schedule });
        }
        if self.invert_sigmas == Some(true) {
            return unsupported("invert_sigmas", true, "false");
        }
        let sigmas = match schedule {
            SigmaSchedule::Default => self.flow_sigma_grid()?,
            other => SigmaGrid::of(other),
        };
        let flow = Flow { shift: self.flow_shift()?, terminal: self.terminal()?, inputs: FlowInputs::default() };
        Ok(Resolved {
            sampler: kind,
            num_train_timesteps: self.train_timesteps()?,
            process: Process::Flow(flow),
            prediction: Prediction::Flow,
            // The classes for flow models alone have no such keys.
            threshold: if self.has_flow_class() { ThresholdMode::None } else { self.threshold(&class(kind))? },
            spacing: Spacing::Linspace,
            steps_offset: 0,
            final_sigma: self.final_flow_sigma(kind, &sigmas)?,
            set_alpha_to_one: true,
            skip_prk_steps: true,
            schedule,
            sigma_range: if schedule == SigmaSchedule::Polyexponential {
                SigmaRange::Table
            } else {
                SigmaRange::Spacing
            },
            sigmas,
            sigma_min: None,
            sigma_max: None,
            discards_penultimate: false,
            initial_noise: InitialNoise::Spacing,
            timesteps: TimestepRule::Class,
            convention: Convention::Diffusers,
            solver: self.solver(kind)?,
            variance: Variance::FixedSmall,
            distilled_timesteps: 1,
            distilled_part: 1.0,
            timestep_scaling: 1.0,
            eta: kind.default_eta().unwrap_or(0.0),
            churn: Churn::default(),
            s_noise: 1.0,
            rho: None,
        })
    }

    fn flow_shift(&self) -> Result<FlowShift> {
        let positive = |key, value: Option<f64>, default: f64| match value.unwrap_or(default) {
            value if (limits::SHIFT.0..=limits::SHIFT.1).contains(&value) => Ok(value),
            value => unsupported(key, value, "a number from 0.001 to 1000"),
        };
        let form = match self.time_shift_type.as_deref() {
            None | Some("exponential") => TimeShift::Exponential,
            Some("linear") if self.has_flow_class() => TimeShift::Linear,
            Some(other) if self.has_flow_class() => {
                return unsupported("time_shift_type", other, "exponential or linear");
            }
            Some(other) => return unsupported("time_shift_type", other, "exponential"),
        };
        // FlowMatchHeunDiscreteScheduler does not have the key.
        let is_heun = self.class_name.as_deref() == Some(FLOW_CLASSES[1].0);
        if self.use_dynamic_shifting != Some(true) || is_heun {
            let own = ("shift", self.shift, 1.0);
            let (key, value, default) = if self.has_flow_class() { own } else { ("flow_shift", self.flow_shift, 1.0) };
            return Ok(FlowShift::Static(positive(key, value, default)?));
        }
        let base = (self.base_image_seq_len.unwrap_or(256), self.base_shift.unwrap_or(0.5));
        let max = (self.max_image_seq_len.unwrap_or(4096), self.max_shift.unwrap_or(1.15));
        for (key, mu) in [("base_shift", base.1), ("max_shift", max.1)] {
            // At 20 the least level of a table of 1000 is above 0.999.
            if !(-20.0..=20.0).contains(&mu) || (form == TimeShift::Linear && mu <= 0.0) {
                return unsupported(key, mu, "a number from -20 to 20, above 0 with the linear form");
            }
        }
        if base.0 == max.0 {
            return unsupported("max_image_seq_len", max.0, "another number than base_image_seq_len");
        }
        Ok(FlowShift::Dynamic { base, max, form })
    }

    fn terminal(&self) -> Result<Option<f64>> {
        match self.shift_terminal.filter(|&terminal| terminal != 0.0) {
            Some(terminal) if !(0.0..1.0).contains(&terminal) => {
                unsupported("shift_terminal", terminal, "null, or a number between 0 and 1")
            }
            terminal => Ok(terminal),
        }
    }

    /// The level after the last step.
    fn final_flow_sigma(&self, kind: SamplerKind, sigmas: &SigmaGrid) -> Result<FinalSigma> {
        let of_class = self.final_sigmas_type.as_deref().filter(|_| SolverClass::of(kind) != SolverClass::Euler);
        Ok(match (kind, of_class) {
            (SamplerKind::Deis, _) if *sigmas == SigmaGrid::Training => FinalSigma::Repeated,
            (SamplerKind::Deis, _) | (_, None | Some("zero")) => FinalSigma::Zero,
            (SamplerKind::UniPc, Some("sigma_min")) => FinalSigma::Repeated,
            (SamplerKind::UniPc, Some(other)) => {
                return unsupported("final_sigmas_type", other, "zero or sigma_min");
            }
            // diffusers takes the least level of a diffusion model.
            (_, Some(other)) => return unsupported("final_sigmas_type", other, "zero with use_flow_sigmas"),
        })
    }

    fn flow_sigma_grid(&self) -> Result<SigmaGrid> {
        let flags = [
            ("use_karras_sigmas", self.use_karras_sigmas, SigmaGrid::Karras),
            ("use_exponential_sigmas", self.use_exponential_sigmas, SigmaGrid::Scheduled(SigmaSchedule::Exponential)),
            ("use_beta_sigmas", self.use_beta_sigmas, SigmaGrid::Scheduled(SigmaSchedule::BetaSigmas)),
        ];
        let mut chosen = flags.into_iter().filter(|(_, flag, _)| *flag == Some(true));
        let Some((key, _, grid)) = chosen.next() else { return Ok(SigmaGrid::Training) };
        if let Some((other, ..)) = chosen.next() {
            return unsupported(other, true, "one of use_karras_sigmas, use_exponential_sigmas and use_beta_sigmas");
        }
        if !self.has_flow_class() {
            // diffusers takes the levels of a diffusion model.
            return unsupported(key, true, "false with use_flow_sigmas, or a sigma schedule by name");
        }
        Ok(grid)
    }
}
