//! Computes a sampler's configuration with all defaults filled in.
//!
//! A sampler other than the folder's own gets the result of diffusers' `from_config`: a key in the JSON is used where
//! the target class has such a key, and a missing key gets the target class's default.

use crate::class::{Class, class};
use crate::sigmas::DISTILLED;
use crate::{
    BetaSchedule, Churn, Convention, Error, FinalSigma, InitialNoise, Prediction, Process, Resolved, Result,
    SamplerKind, SchedulerConfig, SecondOrder, SigmaGrid, SigmaRange, SigmaSchedule, Solver, Spacing, ThresholdMode,
    TimestepRule, UniPcScale, Variance,
};

/// This bound keeps a hostile configuration from requesting all memory.
const MAX_TRAIN_TIMESTEPS: usize = 1_000_000;

impl SchedulerConfig {
    /// The configuration with which `kind` runs.
    ///
    /// Returns an error if a key of the sampler's class has a value that is not supported. Every sampler accepts every
    /// sigma schedule that the caller requests. A schedule in the JSON applies only where diffusers' class has the key.
    pub fn resolve(&self, kind: SamplerKind, spacing: SigmaSchedule) -> Result<Resolved> {
        if self.is_flow() {
            return self.resolve_flow(kind, spacing);
        }
        let class = class(kind);
        let num_train_timesteps = self.train_timesteps()?;
        let steps_offset = self.steps_offset.unwrap_or(0);
        if steps_offset < 0 {
            return unsupported("steps_offset", steps_offset, "0 or more");
        }
        let trails = spacing == SigmaSchedule::Trailing && kind.has_trailing_class();
        let sigmas = if trails { SigmaGrid::Training } else { self.sigma_grid(kind, &class, spacing)? };
        Ok(Resolved {
            sampler: kind,
            num_train_timesteps,
            process: Process::Betas {
                schedule: self.betas(&class, num_train_timesteps)?,
                zero_snr: class.zero_snr && self.rescale_betas_zero_snr.unwrap_or(false),
            },
            prediction: self.prediction(kind)?,
            threshold: self.threshold(&class)?,
            spacing: match self.timestep_spacing.as_deref() {
                _ if trails => Spacing::Trailing,
                None => class.spacing,
                // diffusers' spacing applies to its own classes. All programs that have the other samplers start at the
                // noisiest level.
                Some("leading") if kind.has_no_diffusers_class() => Spacing::Linspace,
                Some("leading") => Spacing::Leading,
                Some("trailing") => Spacing::Trailing,
                Some("linspace") => Spacing::Linspace,
                Some(other) => return unsupported("timestep_spacing", other, "leading, trailing or linspace"),
            },
            steps_offset,
            final_sigma: match self.final_sigmas_type.as_deref().filter(|_| class.final_sigmas_type) {
                // DEIS divides by the remaining noise, so diffusers ends its schedule at the least training noise
                // level.
                _ if kind == SamplerKind::Deis && deis_stops_before_zero(&sigmas) => FinalSigma::SigmaMin,
                None | Some("zero") => FinalSigma::Zero,
                Some("sigma_min") => FinalSigma::SigmaMin,
                Some(other) => return unsupported("final_sigmas_type", other, "zero or sigma_min"),
            },
            set_alpha_to_one: self.set_alpha_to_one.unwrap_or(class.set_alpha_to_one),
            // The Runge-Kutta steps require training timesteps.
            skip_prk_steps: self.skip_prk_steps.unwrap_or(false) || sigmas != SigmaGrid::Training,
            schedule: spacing,
            sigma_range: sigma_range(kind, &sigmas),
            sigmas,
            sigma_min: None,
            sigma_max: None,
            discards_penultimate: false,
            initial_noise: match kind {
                // diffusers' class preserves the variance: its first latents are unit noise.
                SamplerKind::Dpmpp2mSde | SamplerKind::Dpmpp2mSdeHeun => InitialNoise::Variance,
                _ => InitialNoise::Spacing,
            },
            timesteps: TimestepRule::Class,
            convention: Convention::Diffusers,
            solver: self.solver(kind)?,
            variance: match self.variance_type.as_deref().filter(|_| kind == SamplerKind::Ddpm) {
                None | Some("fixed_small") => Variance::FixedSmall,
                Some("fixed_large") => Variance::FixedLarge,
                Some(other) => return unsupported("variance_type", other, "fixed_small or fixed_large"),
            },
            distilled_timesteps: match self.original_inference_steps {
                None => DISTILLED.min(num_train_timesteps),
                Some(distilled) if (1..=num_train_timesteps).contains(&distilled) => distilled,
                Some(other) => return unsupported("original_inference_steps", other, "1 to num_train_timesteps"),
            },
            distilled_part: 1.0,
            timestep_scaling: self.timestep_scaling.unwrap_or(10.0),
            eta: kind.default_eta().unwrap_or(0.0),
            churn: Churn::default(),
            s_noise: 1.0,
            rho: None,
        })
    }

    /// The length of the training schedule.
    pub(crate) fn train_timesteps(&self) -> Result<usize> {
        let num_train_timesteps = self.num_train_timesteps.unwrap_or(1000);
        if !(2..=MAX_TRAIN_TIMESTEPS).contains(&num_train_timesteps) {
            return unsupported("num_train_timesteps", num_train_timesteps, "2 to 1000000, as a rule 1000");
        }
        Ok(num_train_timesteps)
    }

    fn betas(&self, class: &Class, num_train_timesteps: usize) -> Result<BetaSchedule> {
        let start = self.beta_start.unwrap_or(class.beta_start);
        let end = self.beta_end.unwrap_or(class.beta_end);
        for (key, beta) in [("beta_start", start), ("beta_end", end)] {
            if !(beta > 0.0 && beta < 1.0) {
                return unsupported(key, beta, "a number between 0 and 1");
            }
        }
        if let Some(betas) = &self.trained_betas {
            if betas.len() != num_train_timesteps {
                return unsupported("trained_betas", format!("{} values", betas.len()), "num_train_timesteps values");
            }
            if let Some(beta) = betas.iter().find(|&&beta| !(beta > 0.0 && beta < 1.0)) {
                return unsupported("trained_betas", beta, "numbers between 0 and 1");
            }
            return Ok(BetaSchedule::Trained(betas.clone()));
        }
        match self.beta_schedule.as_deref() {
            None if class.scaled_linear => Ok(BetaSchedule::ScaledLinear { start, end }),
            None | Some("linear") => Ok(BetaSchedule::Linear { start, end }),
            Some("scaled_linear") => Ok(BetaSchedule::ScaledLinear { start, end }),
            Some("squaredcos_cap_v2") => Ok(BetaSchedule::SquaredCosCapV2),
            Some(other) => unsupported("beta_schedule", other, "linear, scaled_linear or squaredcos_cap_v2"),
        }
    }

    fn prediction(&self, kind: SamplerKind) -> Result<Prediction> {
        // In diffusers these two classes do not support image predictions.
        let no_sample = matches!(kind, SamplerKind::Pndm | SamplerKind::EulerA);
        match self.prediction_type.as_deref() {
            None | Some("epsilon") => Ok(Prediction::Epsilon),
            Some("v_prediction") => Ok(Prediction::V),
            Some("sample") if no_sample => {
                unsupported("prediction_type", "sample", "another sampler, or epsilon or v_prediction")
            }
            Some("sample") => Ok(Prediction::Sample),
            Some(other) => {
                let expected = "epsilon, v_prediction or sample; flow_prediction with use_flow_sigmas";
                unsupported("prediction_type", other, expected)
            }
        }
    }

    pub(crate) fn threshold(&self, class: &Class) -> Result<ThresholdMode> {
        if class.thresholding && self.thresholding.unwrap_or(false) {
            let ratio = self.dynamic_thresholding_ratio.unwrap_or(0.995);
            if !(0.0..=1.0).contains(&ratio) {
                return unsupported("dynamic_thresholding_ratio", ratio, "a number between 0 and 1");
            }
            let max = self.sample_max_value.unwrap_or(1.0);
            if max <= 0.0 {
                return unsupported("sample_max_value", max, "a number above 0");
            }
            return Ok(ThresholdMode::Dynamic { ratio, max });
        }
        let clips = class.clip_sample.is_some_and(|default| self.clip_sample.unwrap_or(default));
        let range = self.clip_sample_range.unwrap_or(1.0);
        if clips && range <= 0.0 {
            return unsupported("clip_sample_range", range, "a number above 0");
        }
        Ok(if clips { ThresholdMode::Clip(range) } else { ThresholdMode::None })
    }

    fn sigma_grid(&self, kind: SamplerKind, class: &Class, asked: SigmaSchedule) -> Result<SigmaGrid> {
        match asked {
            SigmaSchedule::Default if !class.karras => return Ok(SigmaGrid::Training),
            SigmaSchedule::Default => {}
            // Consistency models have this schedule as their own.
            SigmaSchedule::Lcm if matches!(kind, SamplerKind::Lcm | SamplerKind::Tcd) => {
                return Ok(SigmaGrid::Training);
            }
            other => return Ok(SigmaGrid::of(other)),
        }
        if self.use_flow_sigmas == Some(true) {
            return unsupported("use_flow_sigmas", true, "false, or flow_prediction as prediction_type");
        }
        if kind == SamplerKind::Euler {
            if let Some(other) = self.interpolation_type.as_deref().filter(|&name| name != "linear") {
                return unsupported("interpolation_type", other, "linear");
            }
            if let Some(other) = self.timestep_type.as_deref().filter(|&name| name != "discrete") {
                return unsupported("timestep_type", other, "discrete");
            }
        }
        if matches!(kind, SamplerKind::Euler | SamplerKind::UniPc) {
            for (key, bound) in [("sigma_min", self.sigma_min), ("sigma_max", self.sigma_max)] {
                if let Some(bound) = bound {
                    return unsupported(key, bound, "null: the bounds are those of the training schedule");
                }
            }
        }
        Ok(if self.use_karras_sigmas == Some(true) {
            SigmaGrid::Karras
        } else if self.use_exponential_sigmas == Some(true) {
            SigmaGrid::Scheduled(SigmaSchedule::Exponential)
        } else if self.use_beta_sigmas == Some(true) {
            SigmaGrid::Scheduled(SigmaSchedule::BetaSigmas)
        } else if kind == SamplerKind::Dpmpp2m && self.use_lu_lambdas == Some(true) {
            SigmaGrid::Lu
        } else {
            SigmaGrid::Training
        })
    }

    pub(crate) fn solver(&self, kind: SamplerKind) -> Result<Solver> {
        let mut solver = Solver {
            order: self.solver_order.unwrap_or(2),
            second_order: SecondOrder::Midpoint,
            scale: UniPcScale::Bh2,
            lower_order_final: self.lower_order_final.unwrap_or(true),
            euler_at_final: self.euler_at_final.unwrap_or(false),
            lambda_min_clipped: self.lambda_min_clipped.unwrap_or(f64::NEG_INFINITY),
            disable_corrector: self.disable_corrector.clone().unwrap_or_default(),
        };
        // Each class replaces the solver types of related classes with its own default.
        match (kind, self.solver_type.as_deref()) {
            (SamplerKind::Dpmpp2m, None | Some("midpoint" | "logrho" | "bh1" | "bh2")) => {}
            (SamplerKind::Dpmpp2m, Some("heun")) => solver.second_order = SecondOrder::Heun,
            (SamplerKind::Dpmpp2m, Some(other)) => return unsupported("solver_type", other, "midpoint or heun"),
            (SamplerKind::UniPc, None | Some("bh2" | "midpoint" | "heun" | "logrho")) => {}
            (SamplerKind::UniPc, Some("bh1")) => solver.scale = UniPcScale::Bh1,
            (SamplerKind::UniPc, Some(other)) => return unsupported("solver_type", other, "bh1 or bh2"),
            (SamplerKind::Deis, None | Some("logrho" | "midpoint" | "heun" | "bh1" | "bh2")) => {}
            (SamplerKind::Deis, Some(other)) => return unsupported("solver_type", other, "logrho"),
            (SamplerKind::Dpmpp2mSdeHeun, _) => solver.second_order = SecondOrder::Heun,
            _ => return Ok(solver),
        }
        if kind == SamplerKind::Dpmpp2m {
            if !(1..=2).contains(&solver.order) {
                return unsupported("solver_order", solver.order, "1 or 2");
            }
            match self.algorithm_type.as_deref() {
                // diffusers accepts DEIS's name for DPM-Solver++, so that its configuration can be used.
                None | Some("dpmsolver++" | "deis") => {}
                Some(other) => return unsupported("algorithm_type", other, "dpmsolver++"),
            }
            if let Some(other @ ("learned" | "learned_range")) = self.variance_type.as_deref() {
                return unsupported("variance_type", other, "a model that predicts no variance");
            }
        } else if matches!(kind, SamplerKind::UniPc | SamplerKind::Deis) {
            if !(1..=3).contains(&solver.order) {
                return unsupported("solver_order", solver.order, "1, 2 or 3");
            }
            if kind == SamplerKind::UniPc && self.predict_x0 == Some(false) {
                return unsupported("predict_x0", false, "true");
            }
        }
        Ok(solver)
    }
}

/// The default range of `sigmas`: that of the sampler's diffusers class, if it has one.
fn sigma_range(kind: SamplerKind, sigmas: &SigmaGrid) -> SigmaRange {
    if kind.has_no_diffusers_class() || sigmas.schedule() == Some(SigmaSchedule::Polyexponential) {
        return SigmaRange::Table;
    }
    SigmaRange::Spacing
}

/// Whether diffusers' DEIS stops before zero noise, which it does on the schedules that diffusers has for it.
fn deis_stops_before_zero(sigmas: &SigmaGrid) -> bool {
    use SigmaSchedule::{BetaSigmas, Exponential};
    matches!(sigmas, SigmaGrid::Training | SigmaGrid::Karras | SigmaGrid::Scheduled(Exponential | BetaSigmas))
}

pub(crate) fn unsupported<T>(key: &'static str, value: impl ToString, expected: &'static str) -> Result<T> {
    Err(Error::Unsupported { key, value: value.to_string(), expected })
}
