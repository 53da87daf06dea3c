//! Options that a sampler has no use for.

use crate::options::{InfotextKey, OPTIONS, OptionGroup, OptionRow, Request};
use kiln_scheduler::{Convention, SamplerKind, SigmaSchedule};

impl Request {
    /// Removes options of an input image if no image is named. Returns the infotext keys and values. For settings of an image
    /// that was made from another one, which is not at hand.
    pub fn drop_input(&mut self) -> Vec<(&'static str, String)> {
        if self.init.is_some() {
            return Vec::new();
        }
        self.drop_options(|row| row.group == OptionGroup::Input)
    }

    /// Removes the second pass, in the same way. For settings of a text-to-image run that meet an input image.
    pub fn drop_hires(&mut self) -> Vec<(&'static str, String)> {
        self.drop_options(|row| row.group == OptionGroup::Hires)
    }

    fn drop_options(&mut self, is_unwanted: impl Fn(&OptionRow) -> bool) -> Vec<(&'static str, String)> {
        let mut removed = Vec::new();
        for row in OPTIONS.iter().filter(|row| is_unwanted(row)) {
            if !row.value(self).is_default() {
                let key = match row.infotext {
                    InfotextKey::Within(key) => key,
                    _ => row.infotext_keys().next().unwrap_or(row.name),
                };
                removed.push((key, row.value(self).shown()));
                row.copy(&Request::default(), self);
            }
        }
        removed
    }

    /// Removes options that the request's sampler and sigma schedule do not have, which would be refused. Returns their
    /// infotext keys and values. For settings that come from an image and meet another sampler.
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
        // The model decides what the default schedule is.
        let has_rho = schedule.has_rho() || schedule == SigmaSchedule::Default;
        let options = [
            ("eta", kind.default_eta().is_some()),
            ("s_churn", kind.has_churn()),
            ("s_tmin", kind.has_churn()),
            ("s_tmax", kind.has_churn()),
            ("s_noise", kind.has_s_noise()),
            ("rho", has_rho),
            ("sigma_min", schedule.has_bounds()),
            ("sigma_max", schedule.has_bounds()),
        ];
        let mut removed = Vec::new();
        for row in OPTIONS {
            let is_unfit = options.contains(&(row.name, false));
            if let Some(value) = row.value(self).number().filter(|_| is_unfit) {
                removed.extend(row.infotext_keys().next().map(|key| (key, value)));
                row.copy(&Request::default(), self);
            }
        }
        removed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_an_input_need_it() {
        let request = Request { strength: Some(0.5), mask_invert: true, steps: Some(3), ..Request::default() };
        let mut plain = request.clone();
        let removed = [("Denoising strength", "0.5".to_string()), ("Mask mode", "True".into())];
        assert_eq!(plain.drop_input(), removed);
        assert_eq!(plain, Request { steps: Some(3), ..Request::default() });
        let mut with = Request { init: Some("a.png".into()), ..request };
        assert!(with.drop_input().is_empty() && with.strength == Some(0.5));
    }

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
