//! What a user may say about a sampler beside its name.

use crate::{Error, FinalSigma, Resolved, Result, SamplerKind, SigmaGrid, SigmaSchedule};
use serde::{Deserialize, Serialize};

/// Settings of a sampler; what is `None` is the sampler's default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplerOptions {
    /// How much of the noise is drawn again at each step: 0 is none, 1 is as much as DDPM.
    pub eta: Option<f64>,
    /// How much the noise level is raised before the steps, over all of them: arXiv 2206.00364 algorithm 2.
    pub s_churn: Option<f64>,
    /// Only at noise levels from here...
    pub s_tmin: Option<f64>,
    /// ...to here.
    pub s_tmax: Option<f64>,
    /// What noise is multiplied by that is drawn after the first.
    pub s_noise: Option<f64>,
    /// The power of the sigma schedules `karras` (7) and `polyexponential` (1).
    pub rho: Option<f64>,
    /// The noise levels themselves, the noisiest first, in place of a sigma schedule. A 0 at the end may be left out.
    pub sigmas: Option<Vec<f64>>,
}

impl SamplerOptions {
    /// How many steps the noise levels make, where they are given.
    ///
    /// # Errors
    /// [`Error::Option`] where they do not fall.
    pub fn steps(&self) -> Result<Option<usize>> {
        self.sigmas.as_deref().map(|sigmas| Ok(custom(sigmas)?.len())).transpose()
    }
}

/// How much the noise level is raised before a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Churn {
    /// Over all steps.
    pub amount: f64,
    /// The least noise level at which it is.
    pub min: f64,
    /// The largest.
    pub max: f64,
}

impl Default for Churn {
    fn default() -> Self {
        Self { amount: 0.0, min: 0.0, max: f64::INFINITY }
    }
}

impl Churn {
    /// The noise level that the latents at `sigma` are raised to before one of `steps` steps.
    pub(crate) fn raised(&self, sigma: f64, steps: usize) -> f64 {
        // The paper's bound: more noise than that would be more than there is.
        let most = 2f64.sqrt() - 1.0;
        let applies = (self.min..=self.max).contains(&sigma);
        let gamma = if applies { (self.amount / steps as f64).min(most) } else { 0.0 };
        sigma * (1.0 + gamma)
    }
}

/// More levels than any model has timesteps are a mistake.
const MAX_SIGMAS: usize = 10_000;

impl Resolved {
    /// The same with a user's options.
    ///
    /// # Errors
    /// [`Error::Option`] where the sampler has no such choice, or the value is impossible.
    pub fn with_options(mut self, options: &SamplerOptions) -> Result<Self> {
        let sampler = self.sampler;
        let kinds = |takes: &dyn Fn(SamplerKind) -> bool| {
            let ids: Vec<_> = SamplerKind::ALL.into_iter().filter(|&kind| takes(kind)).map(SamplerKind::id).collect();
            format!("none with {sampler}: it is for {}", ids.join(", "))
        };
        let checked = |option, value: f64, range: (f64, f64), applies: bool, otherwise: &dyn Fn() -> String| {
            if !applies {
                return Err(Error::Option { option, value: value.to_string(), expected: otherwise() });
            }
            if !(range.0..=range.1).contains(&value) {
                let expected = format!("a number from {} to {}", range.0, range.1);
                return Err(Error::Option { option, value: value.to_string(), expected });
            }
            Ok(value)
        };
        if let Some(eta) = options.eta {
            // Above 1 there is no posterior to draw from; k-diffusion's samplers then step down further.
            let most = if sampler.frame() == crate::kind::Frame::Timesteps { 1.0 } else { 100.0 };
            let otherwise = || kinds(&|kind| kind.default_eta().is_some());
            self.eta = checked("eta", eta, (0.0, most), sampler.default_eta().is_some(), &otherwise)?;
        }
        let churn = [
            ("s-churn", options.s_churn, &mut self.churn.amount),
            ("s-tmin", options.s_tmin, &mut self.churn.min),
            ("s-tmax", options.s_tmax, &mut self.churn.max),
        ];
        for (option, value, place) in churn {
            if let Some(value) = value {
                let otherwise = || kinds(&SamplerKind::has_churn);
                *place = checked(option, value, (0.0, 1e6), sampler.has_churn(), &otherwise)?;
            }
        }
        if let Some(s_noise) = options.s_noise {
            let otherwise = || kinds(&SamplerKind::has_s_noise);
            self.s_noise = checked("s-noise", s_noise, (0.0, 100.0), sampler.has_s_noise(), &otherwise)?;
        }
        if let Some(rho) = options.rho {
            let has_rho = match &self.sigmas {
                SigmaGrid::Karras => true,
                SigmaGrid::Scheduled(schedule) => schedule.has_rho(),
                _ => false,
            };
            let otherwise = || format!("none but with the sigma schedules {} and {}", S::Karras, S::Polyexponential);
            self.rho = Some(checked("rho", rho, (0.01, 100.0), has_rho, &otherwise)?);
        }
        if let Some(sigmas) = &options.sigmas {
            self.sigmas = SigmaGrid::Custom(custom(sigmas)?);
            self.skip_prk_steps = true;
            self.final_sigma = FinalSigma::Zero;
        }
        Ok(self)
    }
}

use SigmaSchedule as S;

/// Noise levels as a user gives them, without the 0 at the end.
fn custom(sigmas: &[f64]) -> Result<Vec<f64>> {
    let levels = match sigmas {
        [levels @ .., 0.0] => levels,
        levels => levels,
    };
    let falls = levels.windows(2).all(|pair| pair[0] > pair[1]);
    let positive = levels.iter().all(|&level| level > 0.0 && level.is_finite());
    if falls && positive && (1..=MAX_SIGMAS).contains(&levels.len()) {
        return Ok(levels.to_vec());
    }
    let value = sigmas.iter().take(8).map(f64::to_string).collect::<Vec<_>>().join(",");
    let expected = "noise levels that fall, as in 14.6,6.5,2.7,1,0.4,0".into();
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
    fn an_option_that_says_nothing_to_the_sampler_is_refused() {
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
    fn sigmas_fall_to_zero() {
        assert_eq!(custom(&[10.0, 2.0, 0.5, 0.0]).unwrap(), [10.0, 2.0, 0.5]);
        assert_eq!(custom(&[10.0, 2.0, 0.5]).unwrap(), [10.0, 2.0, 0.5]);
        for wrong in [&[][..], &[0.0], &[1.0, 2.0], &[1.0, 0.0, 0.0], &[f64::NAN], &[f64::INFINITY, 1.0], &[-1.0]] {
            assert!(matches!(custom(wrong), Err(Error::Option { option: "sigmas", .. })), "{wrong:?}");
        }
    }

    #[test]
    fn churn_is_bounded() {
        let churn = Churn { amount: 2.0, min: 0.1, max: 10.0 };
        assert_eq!(churn.raised(1.0, 10), 1.2);
        assert_eq!(churn.raised(20.0, 10), 20.0);
        assert!((churn.raised(1.0, 1) - 2f64.sqrt()).abs() < 1e-15);
    }
}
