//! Options that a sampler has no use for.

use crate::request::Request;
use crate::settings::labels;
use kiln_scheduler::{Convention, SamplerKind, SigmaSchedule};

impl Request {
    /// Takes out what the request's sampler and sigma schedule have no choice of, which would be refused. Gives their names
    /// and values: for settings that come from a picture and meet another sampler.
    pub fn drop_unfit(&mut self) -> Vec<(&'static str, f64)> {
        let Some(sampler) = self.sampler else { return Vec::new() };
        let kind = sampler.kind;
        let schedule = match (self.scheduler, sampler.schedule) {
            (SigmaSchedule::Default, Some(named)) => named,
            (SigmaSchedule::Default, None) if self.convention == Convention::Automatic1111 => {
                Convention::automatic(kind)
            }
            (asked, _) => asked,
        };
        if !schedule.has_range() {
            self.sigma_range = None;
        }
        if self.sigmas.is_some() || (kind.is_on_timesteps() && schedule == SigmaSchedule::Default) {
            self.discard_penultimate_sigma = None;
        }
        if kind.is_on_timesteps() {
            self.initial_noise = None;
        }
        if kind != SamplerKind::UniPc {
            self.unipc_variant = None;
        }
        // What the default is, the model says.
        let has_rho = schedule.has_rho() || schedule == SigmaSchedule::Default;
        let options = [
            (labels::ETA, &mut self.eta, kind.default_eta().is_some()),
            (labels::S_CHURN, &mut self.s_churn, kind.has_churn()),
            (labels::S_TMIN, &mut self.s_tmin, kind.has_churn()),
            (labels::S_TMAX, &mut self.s_tmax, kind.has_churn()),
            (labels::S_NOISE, &mut self.s_noise, kind.has_s_noise()),
            (labels::RHO, &mut self.rho, has_rho),
            (labels::SIGMA_MIN, &mut self.sigma_min, schedule.has_bounds()),
            (labels::SIGMA_MAX, &mut self.sigma_max, schedule.has_bounds()),
        ];
        let unfit = options.into_iter().filter(|(.., fits)| !fits);
        unfit.filter_map(|(name, value, _)| Some((name, value.take()?))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_sampler_has_stays() {
        let mut request = Request {
            sampler: Some(SamplerKind::EulerA.into()),
            scheduler: SigmaSchedule::Exponential,
            eta: Some(0.5),
            s_churn: Some(2.0),
            s_noise: Some(1.0),
            rho: Some(7.0),
            ..Request::default()
        };
        assert_eq!(request.drop_unfit(), [("Sigma churn", 2.0), ("Schedule rho", 7.0)]);
        assert_eq!((request.eta, request.s_churn, request.s_noise, request.rho), (Some(0.5), None, Some(1.0), None));
    }
}
