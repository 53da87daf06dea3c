//! Which model's denoiser makes which evaluations of a run.
//!
//! - diffusers: the base runs the timesteps from the cutoff `round(1000 - 1000 switch)` on and the refiner those below it, each
//!   in the schedule of its own configuration and with a sampler of its own. No noise is added in between
//!   (`denoising_end` of `StableDiffusionXLPipeline`, `get_timesteps` of `StableDiffusionXLImg2ImgPipeline`).
//! - AUTOMATIC1111: one sampler in the schedule of the base. Before each evaluation `apply_refiner` of its
//!   `modules/sd_samplers_common.py` (v1.10) compares the completed part of the run with the switch: evaluations over
//!   `total_steps`, or timesteps over 1000.

use std::sync::Arc;

use kiln_models::ModelFolder;
use kiln_scheduler::{Prediction, Schedule};

use crate::error::{Error, Result};
use crate::input::{Rule, SwitchBy};
use crate::job::Job;

/// Successive evaluations of a run that one model's denoiser makes.
#[derive(Debug, Clone)]
pub struct DenoiserSpan {
    /// The model: 0 is the job's own, 1 its refiner.
    pub denoiser: usize,
    /// How many evaluations, at least 1.
    pub evaluations: usize,
    /// The schedule of a sampler that begins here, at its start; `None` where the sampler of the span before goes on.
    pub schedule: Option<Arc<Schedule>>,
}

impl Job {
    /// The spans of the run in their order, made once. There is always one.
    ///
    /// # Errors
    /// See [`Self::schedule`]; also [`Error::Value`] if a switch leaves one of two models no evaluation, or if the models
    /// predict different things.
    pub fn spans(&self, model: &ModelFolder) -> Result<Arc<[DenoiserSpan]>> {
        self.parsed.spans(|| {
            let schedule = self.schedule(model)?;
            match (&self.refiner, self.image.rule) {
                (None, _) => {
                    let evaluations = schedule.points().len() - schedule.start();
                    Ok(vec![DenoiserSpan { denoiser: 0, evaluations, schedule: Some(schedule) }])
                }
                (Some(refiner), rule) => {
                    let other = self.schedule_of(refiner.model(), false)?;
                    check_predictions(&schedule, &other)?;
                    match rule {
                        Rule::Diffusers => self.by_timestep_cutoff(schedule, other),
                        _ => self.within_sampler(schedule),
                    }
                }
            }
        })
    }

    /// Evaluations of the whole run.
    ///
    /// # Errors
    /// See [`Self::spans`].
    pub fn evaluations(&self, model: &ModelFolder) -> Result<usize> {
        Ok(self.spans(model)?.iter().map(|span| span.evaluations).sum())
    }

    /// diffusers' rule.
    fn by_timestep_cutoff(&self, base: Arc<Schedule>, refiner: Schedule) -> Result<Vec<DenoiserSpan>> {
        let switch = self.refining.switch;
        let first_below = |schedule: &Schedule| {
            let trained = schedule.config().num_train_timesteps as f64;
            let cutoff = (trained - switch * trained).round_ties_even(); // Python's `round`
            schedule.points().iter().rposition(|point| point.timestep >= cutoff).map_or(0, |last| last + 1)
        };
        let evaluations = first_below(&base).saturating_sub(base.start());
        let first = first_below(&refiner);
        if evaluations == 0 || first >= refiner.points().len() {
            return self.no_evaluation(evaluations == 0);
        }
        // Of two evaluations of a step the refiner makes both: "+1" for schedulers of order 2.
        let starts = refiner.step_starts();
        let start = starts.iter().rev().find(|&&start| start <= first).copied().unwrap_or(0);
        let refiner = refiner.starting_at(start)?;
        let left = refiner.points().len() - start;
        Ok(vec![
            DenoiserSpan { denoiser: 0, evaluations, schedule: Some(base) },
            DenoiserSpan { denoiser: 1, evaluations: left, schedule: Some(Arc::new(refiner)) },
        ])
    }

    /// AUTOMATIC1111's rule.
    fn within_sampler(&self, schedule: Arc<Schedule>) -> Result<Vec<DenoiserSpan>> {
        let (switch, start) = (self.refining.switch, schedule.start());
        let all = schedule.points().len() - start;
        let steps = schedule.step_starts().iter().filter(|&&step| step >= start).count();
        // `SamplerData.total_steps`: the last step of such samplers has one evaluation, but is counted as two.
        let total_steps = if self.sampler.evaluates_twice() { 2 * steps } else { steps };
        let completed = |step: usize| match self.refining.switch_by {
            SwitchBy::Steps => step as f64 / total_steps as f64,
            SwitchBy::Timesteps => (999.0 - schedule.nearest_timestep(start + step) as f64) / 1000.0,
        };
        let evaluations = (0..all).find(|&step| completed(step) >= switch).unwrap_or(all);
        if evaluations == 0 || evaluations == all {
            return self.no_evaluation(evaluations == 0);
        }
        Ok(vec![
            DenoiserSpan { denoiser: 0, evaluations, schedule: Some(schedule) },
            DenoiserSpan { denoiser: 1, evaluations: all - evaluations, schedule: None },
        ])
    }

    fn no_evaluation<T>(&self, of_base: bool) -> Result<T> {
        let (whose, remedy) = match (of_base, self.init.strength()) {
            (false, _) => ("the refiner", "a smaller one, or more `steps`"),
            (true, None) => ("the model before the refiner", "a larger one, or more `steps`"),
            (true, Some(_)) => ("the model before the refiner", "a larger one, more `steps` or more `strength`"),
        };
        let found = format!("{}, which leaves {whose} no step", self.refining.switch);
        Err(Error::Value { name: "refiner_switch", found, expected: remedy.into() })
    }
}

/// Refuses models whose networks predict different things: one sampler takes the output of both.
fn check_predictions(base: &Schedule, refiner: &Schedule) -> Result<()> {
    let (base, refiner) = (base.config().prediction, refiner.config().prediction);
    if base == refiner {
        return Ok(());
    }
    let of = |prediction: Prediction| match prediction {
        Prediction::Epsilon => "noise",
        Prediction::V => "velocity",
        Prediction::Sample => "images",
        Prediction::Flow => "the velocity of a flow",
    };
    let found = format!("a model that predicts {}", of(refiner));
    let expected = format!("one that predicts {}, as the model does", of(base));
    Err(Error::Value { name: "refiner", found, expected })
}

#[cfg(test)]
mod tests {
    use kiln_scheduler::SamplerKind;
    use kiln_testkit::fixtures;

    use super::*;
    use crate::Request;

    fn spans(sampler: SamplerKind, steps: usize, switch: f64, rule: Rule, by: SwitchBy) -> Vec<(usize, usize)> {
        let path = fixtures("models/sd1");
        let request = Request {
            steps: Some(steps),
            sampler: Some(sampler.into()),
            refiner: Some(path.clone()),
            refiner_switch: Some(switch),
            refiner_switch_by: Some(by),
            rule: Some(rule),
            ..Request::default()
        };
        let model = ModelFolder::open(&path).unwrap();
        let spans = request.resolve(&model).unwrap().spans(&model).unwrap();
        spans.iter().map(|span| (span.denoiser, span.evaluations)).collect()
    }

    /// `step / total_steps >= refiner_switch_at`, over `total_steps` of twice the steps for samplers of second order.
    #[test]
    fn a_sampler_goes_on_with_another_denoiser() {
        let of = |sampler, steps, switch| spans(sampler, steps, switch, Rule::Automatic1111, SwitchBy::Steps);
        assert_eq!(of(SamplerKind::Euler, 10, 0.8), [(0, 8), (1, 2)]);
        assert_eq!(of(SamplerKind::Euler, 20, 0.33), [(0, 7), (1, 13)]); // 7 / 20 is the first of at least 0.33
        assert_eq!(of(SamplerKind::Heun, 6, 0.5), [(0, 6), (1, 5)]); // 6 / 12
    }

    /// `(999 - timestep) / 1000 >= refiner_switch_at`. Of ten steps from 999 down to 0 the eighth is at 222.
    #[test]
    fn timesteps_are_those_of_the_noise_level() {
        let of = |switch| spans(SamplerKind::Euler, 10, switch, Rule::Automatic1111, SwitchBy::Timesteps);
        let (early, late) = (of(0.3), of(0.9));
        assert!(early[0].1 < late[0].1, "{early:?} {late:?}");
        assert_eq!(early[0].1 + early[1].1, 10);
    }

    /// Of PNDM's and Euler's "leading" timesteps 901, 801, .., 1 those from 200 on: `denoising_end` 0.8.
    #[test]
    fn timesteps_are_cut_as_in_diffusers() {
        let of = |sampler, switch| spans(sampler, 10, switch, Rule::Diffusers, SwitchBy::Steps);
        assert_eq!(of(SamplerKind::Euler, 0.8), [(0, 8), (1, 2)]);
        assert_eq!(of(SamplerKind::Euler, 0.5), [(0, 5), (1, 5)]);
        // 901, 801, 801, .., 201, 201 is cut after both; the refiner begins with the second 201.
        assert_eq!(of(SamplerKind::Heun, 0.8), [(0, 15), (1, 5)]);
    }
}
