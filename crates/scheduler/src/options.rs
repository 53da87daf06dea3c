//! The settings of a sampler besides its name.

use crate::kind::Frame;
use crate::{
    Convention, Error, FinalSigma, FlowForm, InitialNoise, Resolved, Result, SamplerKind, SigmaGrid, SigmaRange,
    SigmaSchedule, UniPcScale,
};
use serde::{Deserialize, Serialize};

/// Settings of a sampler. `None` selects the sampler's default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplerOptions {
    /// The share of the noise that is replaced with fresh noise at each step: 0 is none, 1 is as in DDPM.
    pub eta: Option<f64>,
    /// The total amount by which the noise level is raised before the steps: arXiv 2206.00364 algorithm 2.
    pub s_churn: Option<f64>,
    /// The least noise level at which `s_churn` applies.
    pub s_tmin: Option<f64>,
    /// The largest noise level at which `s_churn` applies.
    pub s_tmax: Option<f64>,
    /// The factor of the noise that is added after the start.
    pub s_noise: Option<f64>,
    /// The power of the sigma schedules `karras` (7) and `polyexponential` (1).
    pub rho: Option<f64>,
    /// The noise levels as a list, the noisiest first, instead of a sigma schedule. A 0 at the end may be omitted.
    pub sigmas: Option<Vec<f64>>,
    /// The program whose rules apply where programs differ. The options below override them.
    pub convention: Convention,
    /// The range of the sigma schedules that interpolate between two levels.
    pub sigma_range: Option<SigmaRange>,
    /// The least noise level of a sigma schedule with several levels: the one before the 0 at the end.
    pub sigma_min: Option<f64>,
    /// The largest noise level of a sigma schedule, which is its first.
    pub sigma_max: Option<f64>,
    /// Whether one noise level more than requested is computed, and the next-to-last one removed.
    pub discard_penultimate_sigma: Option<bool>,
    /// The rule for the factor that scales unit noise to the first latents.
    pub initial_noise: Option<InitialNoise>,
    /// UniPC's function B(h).
    pub unipc_variant: Option<UniPcScale>,
}

impl SamplerOptions {
    /// The number of steps that the noise levels define, if they are given.
    ///
    /// # Errors
    /// [`Error::Option`] if the levels do not decrease.
    pub fn steps(&self) -> Result<Option<usize>> {
        self.sigmas.as_deref().map(|sigmas| Ok(custom(sigmas)?.len())).transpose()
    }
}

/// The increase of the noise level before a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Churn {
    /// The total over all steps.
    pub amount: f64,
    /// The least noise level at which it applies.
    pub min: f64,
    /// The largest noise level at which it applies.
    pub max: f64,
    /// Whether noise is also generated, and discarded, in the steps that are not raised, as in k-diffusion. Later steps
    /// then get the same noise as if all steps were raised.
    pub draws_always: bool,
}

impl Default for Churn {
    fn default() -> Self {
        Self { amount: 0.0, min: 0.0, max: f64::INFINITY, draws_always: false }
    }
}

impl Churn {
    /// The noise level to which the latents at `sigma` are raised before one of `steps` steps.
    pub(crate) fn raised(&self, sigma: f64, steps: usize) -> f64 {
        // The paper's bound: the noise that is added may not exceed the noise present.
        let most = 2f64.sqrt() - 1.0;
        let applies = (self.min..=self.max).contains(&sigma);
        let gamma = if applies { (self.amount / steps as f64).min(most) } else { 0.0 };
        sigma * (1.0 + gamma)
    }
}

/// The least and the largest values of options, for front ends.
pub mod limits {
    /// Of `eta`. Samplers on timesteps allow 1 at most: above it there is no posterior to sample from.
    pub const ETA: (f64, f64) = (0.0, 100.0);
    /// Of `s_churn`, `s_tmin` and `s_tmax`.
    pub const CHURN: (f64, f64) = (0.0, 1e6);
    /// Of `s_noise`.
    pub const S_NOISE: (f64, f64) = (0.0, 100.0);
    /// Of `rho`.
    pub const RHO: (f64, f64) = (0.01, 100.0);
    /// Of noise levels. Models are trained between 0.01 and 5000, and f32 has too few digits for an image under noise that
    /// is a million times as strong.
    pub const SIGMA: (f64, f64) = (1e-5, 1e5);
    /// Of the static shift of a flow model's levels.
    pub const SHIFT: (f64, f64) = (0.001, 1000.0);
    /// The largest table of a flow model's levels.
    pub const FLOW_TABLE: usize = 1_000_000;
}

/// A list with more levels than any model has timesteps is a mistake.
const MAX_SIGMAS: usize = 10_000;

impl Resolved {
    /// Applies a user's options.
    ///
    /// # Errors
    /// [`Error::Option`] if an option does not apply to the sampler, or its value is impossible.
    pub fn with_options(mut self, options: &SamplerOptions) -> Result<Self> {
        self.follow(options.convention);
        let sampler = self.sampler;
        let is_flow = self.is_flow();
        let kinds = |takes: &dyn Fn(SamplerKind) -> bool| {
            let takes = |kind: SamplerKind| takes(kind) && (!is_flow || kind.flow() != FlowForm::Refused);
            let ids: Vec<_> = SamplerKind::ALL.into_iter().filter(|&kind| takes(kind)).map(SamplerKind::id).collect();
            if ids.is_empty() {
                return "none with a flow model".into();
            }
            format!("none with {sampler}: it is for {}", ids.join(", "))
        };
        // The samplers that add noise to a flow model's latents have formulas of their own.
        let adds_noise = |kind: SamplerKind| !is_flow || kind.flow() == FlowForm::Own;
        let has_eta = |kind: SamplerKind| kind.default_eta().is_some() && adds_noise(kind);
        let has_churn = |kind: SamplerKind| kind.has_churn() && !is_flow;
        let has_s_noise = |kind: SamplerKind| kind.has_s_noise() && adds_noise(kind);
        let checked = |option, value: f64, range: (f64, f64), applies: bool, otherwise: &dyn Fn() -> String| {
            let shown = || crate::names::number_text(value);
            if !applies {
                return Err(Error::Option { option, value: shown(), expected: otherwise() });
            }
            if !(range.0..=range.1).contains(&value) {
                let expected = format!("a number from {} to {}", range.0, range.1);
                return Err(Error::Option { option, value: shown(), expected });
            }
            Ok(value)
        };
        if let Some(eta) = options.eta {
            // Above 1 k-diffusion's samplers step down further. A flow model's would step below zero noise.
            let most = if is_flow || sampler.frame() == Frame::Timesteps { 1.0 } else { limits::ETA.1 };
            let otherwise = || kinds(&has_eta);
            self.eta = checked("eta", eta, (limits::ETA.0, most), has_eta(sampler), &otherwise)?;
        }
        let churn = [
            ("s_churn", options.s_churn, &mut self.churn.amount),
            ("s_tmin", options.s_tmin, &mut self.churn.min),
            ("s_tmax", options.s_tmax, &mut self.churn.max),
        ];
        for (option, value, place) in churn {
            if let Some(value) = value {
                let otherwise = || kinds(&has_churn);
                *place = checked(option, value, limits::CHURN, has_churn(sampler), &otherwise)?;
            }
        }
        if let Some(s_noise) = options.s_noise {
            let otherwise = || kinds(&has_s_noise);
            self.s_noise = checked("s_noise", s_noise, limits::S_NOISE, has_s_noise(sampler), &otherwise)?;
        }
        if let Some(rho) = options.rho {
            let has_rho = self.sigmas.schedule().is_some_and(SigmaSchedule::has_rho);
            let otherwise = || format!("none but with the sigma schedules {} and {}", S::Karras, S::Polyexponential);
            self.rho = Some(checked("rho", rho, limits::RHO, has_rho, &otherwise)?);
        }
        self.take_range(options, &checked)?;
        if let Some(initial_noise) = options.initial_noise {
            if is_flow || sampler.frame() == Frame::Timesteps {
                let expected = kinds(&|kind| !is_flow && kind.frame() != Frame::Timesteps);
                return Err(Error::Option { option: "initial_noise", value: initial_noise.to_string(), expected });
            }
            self.initial_noise = initial_noise;
        }
        if let Some(variant) = options.unipc_variant {
            if sampler != SamplerKind::UniPc {
                let expected = kinds(&|kind| kind == SamplerKind::UniPc);
                return Err(Error::Option { option: "unipc_variant", value: variant.to_string(), expected });
            }
            self.solver.scale = variant;
        }
        if let Some(sigmas) = &options.sigmas {
            self.sigmas = SigmaGrid::Custom(self.below_one(custom(sigmas)?)?);
            self.skip_prk_steps = true;
            self.final_sigma = FinalSigma::Zero;
            self.discards_penultimate = false;
        }
        Ok(self)
    }

    /// The noise levels of a user, which are at most 1 for a flow model.
    fn below_one(&self, levels: Vec<f64>) -> Result<Vec<f64>> {
        match levels.first() {
            Some(&first) if self.is_flow() && first > 1.0 => {
                let expected = "noise levels of a flow model, which are at most 1".into();
                Err(Error::Option { option: "sigmas", value: crate::names::number_text(first), expected })
            }
            _ => Ok(levels),
        }
    }

    /// Sets the range of the sigma schedule, and whether the next-to-last level is removed.
    fn take_range(&mut self, options: &SamplerOptions, checked: &Checked<'_>) -> Result<()> {
        let schedule = self.sigmas.schedule();
        let with = |takes: fn(SigmaSchedule) -> bool| {
            format!("none but with the sigma schedules {}", SigmaSchedule::ids_that(takes))
        };
        if let Some(range) = options.sigma_range {
            if !schedule.is_some_and(S::has_range) {
                let (value, expected) = (range.to_string(), with(S::has_range));
                return Err(Error::Option { option: "sigma_range", value, expected });
            }
            self.sigma_range = range;
        }
        let has_bounds = schedule.is_some_and(S::has_bounds);
        let otherwise = || with(S::has_bounds);
        let bound = |option, value: Option<f64>| {
            let range = if self.is_flow() { (limits::SIGMA.0, 1.0) } else { limits::SIGMA };
            value.map(|value| checked(option, value, range, has_bounds, &otherwise)).transpose()
        };
        (self.sigma_min, self.sigma_max) =
            (bound("sigma_min", options.sigma_min)?, bound("sigma_max", options.sigma_max)?);
        if let (Some(min), Some(max)) = (self.sigma_min, self.sigma_max)
            && min >= max
        {
            let expected = format!("less than `sigma_max`, which is {max}");
            return Err(Error::Option { option: "sigma_min", value: min.to_string(), expected });
        }
        if let Some(discard) = options.discard_penultimate_sigma {
            let on_timesteps = self.sampler.frame() == Frame::Timesteps && self.sigmas == SigmaGrid::Training;
            if discard && (on_timesteps || options.sigmas.is_some()) {
                let expected = "none without a sigma schedule, which makes the noise levels".into();
                return Err(Error::Option { option: "discard_penultimate_sigma", value: "true".into(), expected });
            }
            self.discards_penultimate = discard;
        }
        Ok(())
    }
}

/// Checks and returns a number of an option: the option, the number, its range, whether it applies, and the expected
/// value if it does not.
type Checked<'a> = dyn Fn(&'static str, f64, (f64, f64), bool, &dyn Fn() -> String) -> Result<f64> + 'a;

use SigmaSchedule as S;

/// Noise levels from a user, without the 0 at the end.
fn custom(sigmas: &[f64]) -> Result<Vec<f64>> {
    let levels = match sigmas {
        [levels @ .., 0.0] => levels,
        levels => levels,
    };
    let falls = levels.windows(2).all(|pair| pair[0] > pair[1]);
    let possible = levels.iter().all(|level| (limits::SIGMA.0..=limits::SIGMA.1).contains(level));
    if falls && possible && (1..=MAX_SIGMAS).contains(&levels.len()) {
        return Ok(levels.to_vec());
    }
    let value = sigmas.iter().take(8).map(|&level| crate::names::number_text(level)).collect::<Vec<_>>().join(",");
    let expected = "noise levels that fall, as in 14.6,6.5,2.7,1,0.4,0, from 1e5 at most to 1e-5 at least".into();
    Err(Error::Option { option: "sigmas", value, expected })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SchedulerConfig;

    fn apply(kind: SamplerKind, options: SamplerOptions) -> Result<Resolved> {
        SchedulerConfig::default().resolve(kind, SigmaSchedule::Default)?.with_options(&options)
    }

    #[test]
    fn an_option_without_effect_is_refused() {
        let eta = |kind, eta| apply(kind, SamplerOptions { eta: Some(eta), ..Default::default() });
        assert_eq!(eta(SamplerKind::EulerA, 0.5).unwrap().eta, 0.5);
        assert!(eta(SamplerKind::Ddim, 1.5).unwrap_err().to_string().contains("a number from 0 to 1"));
        let message = eta(SamplerKind::Euler, 0.5).unwrap_err().to_string();
        assert!(message.contains("none with euler: it is for ddim, euler_a"), "{message}");
        let churn = |kind| apply(kind, SamplerOptions { s_churn: Some(5.0), ..Default::default() });
        assert_eq!(churn(SamplerKind::Heun).unwrap().churn.amount, 5.0);
        assert!(churn(SamplerKind::Ddim).unwrap_err().to_string().contains("euler, heun, dpm2"));
        let rho = apply(SamplerKind::Euler, SamplerOptions { rho: Some(5.0), ..Default::default() });
        assert!(rho.unwrap_err().to_string().contains("karras and polyexponential"));
    }

    #[test]
    fn a_range_without_effect_is_refused() {
        let apply = |schedule, options: SamplerOptions| {
            SchedulerConfig::default().resolve(SamplerKind::Euler, schedule)?.with_options(&options)
        };
        let table = SamplerOptions { sigma_range: Some(SigmaRange::Table), ..Default::default() };
        assert_eq!(apply(S::Karras, table.clone()).unwrap().sigma_range, SigmaRange::Table);
        assert_eq!(apply(S::Karras, SamplerOptions::default()).unwrap().sigma_range, SigmaRange::Spacing);
        let message = apply(S::Simple, table).unwrap_err().to_string();
        assert_eq!(
            message,
            "`sigma_range` is table, expected none but with the sigma schedules karras, exponential, polyexponential, \
             beta_sigmas"
        );
        let bounds = |min, max| SamplerOptions { sigma_min: Some(min), sigma_max: Some(max), ..Default::default() };
        assert!(apply(S::Normal, bounds(0.1, 10.0)).is_ok());
        let message = |schedule, bounds| apply(schedule, bounds).unwrap_err().to_string();
        assert!(message(S::Gits, bounds(0.1, 10.0)).contains("`sigma_min` is 0.1, expected none but with"));
        assert!(message(S::Karras, bounds(10.0, 0.1)).contains("less than `sigma_max`, which is 0.1"));
        assert!(message(S::Karras, bounds(0.1, 1e308)).contains("`sigma_max` is 1e308, expected a number from"));
    }

    /// An option overrides the rules of a program.
    #[test]
    fn options_win_over_the_convention() {
        let convention = Convention::Automatic1111;
        let apply = |options| apply(SamplerKind::Dpm2, options).unwrap();
        let found = apply(SamplerOptions { convention, ..Default::default() });
        assert_eq!((found.discards_penultimate, found.initial_noise), (true, InitialNoise::Sigma));
        assert_eq!((found.sigmas, found.sigma_range), (SigmaGrid::Karras, SigmaRange::Table));
        let found = apply(SamplerOptions {
            convention,
            sigma_range: Some(SigmaRange::Spacing),
            discard_penultimate_sigma: Some(false),
            initial_noise: Some(InitialNoise::Variance),
            ..Default::default()
        });
        assert_eq!((found.discards_penultimate, found.initial_noise), (false, InitialNoise::Variance));
        assert_eq!(found.sigma_range, SigmaRange::Spacing);
    }

    #[test]
    fn sigmas_fall_to_zero() {
        assert_eq!(custom(&[10.0, 2.0, 0.5, 0.0]).unwrap(), [10.0, 2.0, 0.5]);
        assert_eq!(custom(&[10.0, 2.0, 0.5]).unwrap(), [10.0, 2.0, 0.5]);
        for wrong in [
            &[][..],
            &[1e30, 1.0],
            &[1.0, 1e-30],
            &[1e308, 1e307],
            &[0.0],
            &[1.0, 2.0],
            &[1.0, 0.0, 0.0],
            &[f64::NAN],
            &[f64::INFINITY, 1.0],
            &[-1.0],
        ] {
            assert!(matches!(custom(wrong), Err(Error::Option { option: "sigmas", .. })), "{wrong:?}");
        }
    }

    #[test]
    fn churn_is_bounded() {
        let churn = Churn { amount: 2.0, min: 0.1, max: 10.0, ..Churn::default() };
        assert_eq!(churn.raised(1.0, 10), 1.2);
        assert_eq!(churn.raised(20.0, 10), 20.0);
        assert!((churn.raised(1.0, 1) - 2f64.sqrt()).abs() < 1e-15);
    }
}
