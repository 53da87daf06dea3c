//! Classifier-free guidance: its strength, the steps that have it, and how far its result is rescaled.
//!
//! Plain guidance is part of the guided step. Rescaling, thresholding, projections and samplers that need the unconditional
//! prediction take both halves of the step's output instead.

use candle_core::{D, Tensor};
use kiln_request::{GuidanceOptions, Job, NetworkOptions, PromptSteps, Threshold};
use kiln_scheduler::{MimicCfg, ModelOutput};

use crate::error::{Error, Result};
use crate::pipeline::conditioning::{Conditions, StepRows};
use crate::pipeline::projection::Projection;

/// The guidance of a job.
pub struct Guidance {
    /// Its strengths from the first to the last evaluation, those between on straight lines. One at least.
    strengths: Vec<f64>,
    options: GuidanceOptions,
    network: NetworkOptions,
    projection: Option<Projection>,
    /// Whether the sampler needs the unconditional prediction too.
    both: bool,
    guided: bool,
    /// Whether the step combines several conditions (`AND`). It has the unconditional half then with guidance and without;
    /// without guidance the strength is 1.
    composed: bool,
    /// All evaluations of the schedule.
    evaluations: usize,
    /// By AUTOMATIC1111's rules: the number of evaluations that it divides by, twice the steps for samplers with two
    /// evaluations a step.
    counted: Option<usize>,
}

/// The guidance of one evaluation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct EvaluationGuidance {
    /// Whether it is guided.
    pub(crate) on: bool,
    /// Where it is on the schedule.
    pub(crate) timestep: f64,
    strength: f64,
    /// The strength of perturbed attention guidance.
    pag_scale: f64,
    /// The strength that the step itself applies; `None` if it gives all its predictions.
    pub(crate) within_step: Option<f64>,
}

impl EvaluationGuidance {
    /// The rows of the step.
    pub(crate) fn rows(&self) -> StepRows {
        StepRows { guided: self.on, perturbed: self.pag_scale != 0.0 }
    }

    /// The part of it that belongs to the step: steps with equal ones can be one call.
    pub(crate) fn of_step(&self) -> (StepRows, Option<u64>) {
        (self.rows(), self.within_step.map(f64::to_bits))
    }
}

impl Guidance {
    /// Guidance of strength `scale` at each of `evaluations` evaluations; none where `guided` is false.
    pub fn plain(scale: f64, guided: bool, evaluations: usize) -> Self {
        Self {
            strengths: vec![scale],
            options: GuidanceOptions::default(),
            network: NetworkOptions::default(),
            projection: None,
            both: false,
            guided,
            composed: false,
            evaluations,
            counted: None,
        }
    }

    /// The guidance of `job` with these conditions, over so many evaluations.
    pub(crate) fn new(job: &Job, conditions: &Conditions, evaluations: usize) -> Self {
        let (guided, composed) = (conditions.is_guided(), conditions.is_composed());
        let both = job.sampler.needs_unconditional();
        let counted = match job.prompt_steps() {
            PromptSteps::Calls(count) => Some(count),
            PromptSteps::Sampler(_) => None,
        };
        // A distilled network applies the strength itself.
        let one = if job.guidance_inside { 1.0 } else { job.cfg_scale };
        let strengths = job.cfg_schedule.clone().unwrap_or_else(|| vec![one]);
        let projection = Projection::new(&job.guidance);
        let (options, network) = (job.guidance, job.network);
        Self { strengths, options, network, projection, both, guided, composed, evaluations, counted }
    }

    /// Sets one strength for all evaluations; 1 turns guidance off.
    ///
    /// # Errors
    /// [`Error::Request`] without an unconditional half that it could act on, and for numbers below 0 or above 1000.
    pub(crate) fn set_strength(&mut self, strength: f64) -> Result<()> {
        if !(0.0..=1000.0).contains(&strength) {
            return Err(Error::value("cfg_scale", strength, "a number from 0 to 1000"));
        }
        if !self.guided && strength != 1.0 {
            return Err(Error::value("cfg_scale", strength, "1: the images began without guidance"));
        }
        // A schedule of two: a step of strength 1 has no unconditional half then.
        self.strengths = vec![strength; 2];
        Ok(())
    }

    /// The guidance of an evaluation of the schedule, which is at `timestep`.
    pub(crate) fn at(&self, evaluation: usize, timestep: f64) -> EvaluationGuidance {
        let strength = self.strength(evaluation);
        // A schedule turns guidance off if it does nothing; one strength of 1 has no unconditional half in any case.
        let does_something = strength != 1.0 || self.strengths.len() == 1 || self.both;
        let on = self.is_on(evaluation) && does_something;
        let pag_scale = self.network.pag_scale_at(timestep);
        let is_plain = pag_scale == 0.0
            && self.network.sag_scale == 0.0
            && !self.both
            && self.options.rescale == 0.0
            && self.options.percentile.is_none()
            && self.projection.is_none();
        let within = if on { strength } else { 1.0 };
        EvaluationGuidance {
            on,
            timestep,
            strength,
            pag_scale,
            within_step: (is_plain && (on || self.composed)).then_some(within),
        }
    }

    /// The strength at an evaluation.
    fn strength(&self, evaluation: usize) -> f64 {
        let last = self.strengths.len().saturating_sub(1);
        let place = evaluation as f64 * last as f64 / self.evaluations.saturating_sub(1).max(1) as f64;
        let (i, part) = (place.floor().min(last as f64) as usize, place.fract());
        let of = |i: usize| self.strengths.get(i.min(last)).copied().unwrap_or(1.0);
        if part == 0.0 { of(i) } else { of(i) + part * (of(i + 1) - of(i)) }
    }

    /// Whether an evaluation of the schedule is between start and end of the guidance.
    fn is_on(&self, evaluation: usize) -> bool {
        let part = evaluation as f64 / self.evaluations as f64;
        let GuidanceOptions { start, end, .. } = self.options;
        let has_begun = match self.counted {
            // "Skip Early CFG" leaves out the step at the boundary, too: `step / total_steps <= skip_early_cond` in
            // sd_samplers_cfg_denoiser.py.
            Some(counted) => start == 0.0 || evaluation as f64 / counted as f64 > start,
            None => part >= start,
        };
        self.guided && has_begun && (part < end || end >= 1.0)
    }

    /// The sampler's answer from the step's output at an evaluation. That is guided already, or all predictions: the
    /// unconditional one where the step is guided or combines conditions, the conditional one, then the perturbed one where there
    /// is one, each `(n, ..)`. `degraded` is the prediction of self-attention guidance, for the conditions of the first one.
    pub(crate) fn answer(
        &mut self,
        output: Tensor,
        now: &EvaluationGuidance,
        degraded: Option<&Tensor>,
    ) -> Result<ModelOutput> {
        if now.within_step.is_some() {
            let unconditional = self.both.then(|| output.clone());
            return Ok(ModelOutput { unconditional, ..output.into() });
        }
        let StepRows { guided, perturbed } = now.rows();
        let has_unconditional = guided || self.composed;
        let count = 1 + usize::from(has_unconditional) + usize::from(perturbed);
        let n = output.dim(0)? / count;
        let part = |i: usize| output.narrow(0, i * n, n);
        let conditional = part(usize::from(has_unconditional))?;
        // `s (c - p)` of perturbed attention guidance, or `s (first - degraded)` of self-attention guidance.
        let away = match (perturbed, degraded) {
            (true, _) => Some(((&conditional - part(count - 1)?)? * now.pag_scale)?),
            (false, Some(degraded)) => Some(((part(0)? - degraded)? * self.network.sag_scale)?),
            (false, None) => None,
        };
        let moved = |output: Tensor| -> Result<Tensor> {
            Ok(match &away {
                Some(away) => (output + away)?,
                None => output,
            })
        };
        if !guided {
            // Where guidance does nothing, both halves are the same: the conditional one.
            let output = moved(conditional)?;
            let unconditional = self.both.then(|| output.clone());
            return Ok(ModelOutput { unconditional, ..output.into() });
        }
        let unconditional = part(0)?;
        let difference = (&conditional - &unconditional)?;
        let difference = match &mut self.projection {
            Some(projection) => projection.project(difference, &conditional)?,
            None => difference,
        };
        let guided = |scale: f64| -> Result<Tensor> {
            let guided = moved((&unconditional + (&difference * scale)?)?)?;
            if self.options.rescale == 0.0 {
                return Ok(guided);
            }
            rescaled(&guided, &conditional, self.options.rescale)
        };
        let mimic = match self.options.threshold() {
            Some(Threshold { percentile, mimic_scale }) => Some(MimicCfg { output: guided(mimic_scale)?, percentile }),
            None => None,
        };
        let output = guided(now.strength)?;
        Ok(ModelOutput { output, unconditional: self.both.then_some(unconditional), mimic })
    }
}

/// `guided` (n, c, h, w) with the deviation of each image moved towards `conditional`'s: arXiv 2305.08891, equations 15
/// and 16.
fn rescaled(guided: &Tensor, conditional: &Tensor, phi: f64) -> Result<Tensor> {
    let deviation = |tensor: &Tensor| tensor.flatten_from(1)?.var_keepdim(D::Minus1)?.sqrt(); // (n, 1)
    let ratio = (deviation(conditional)? / deviation(guided)?)?;
    let factor = ratio.affine(phi, 1.0 - phi)?.reshape((guided.dim(0)?, 1, 1, 1))?;
    Ok(guided.broadcast_mul(&factor)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn guide(options: GuidanceOptions, both: bool) -> Guidance {
        Guidance { options, both, ..Guidance::plain(3.0, true, 10) }
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// The guidance of the first evaluation, on or off.
    fn now(guide: &Guidance, on: bool) -> EvaluationGuidance {
        let off =
            |end| Guidance { options: GuidanceOptions { end, ..guide.options }, ..Guidance::plain(3.0, true, 10) };
        let off = Guidance { both: guide.both, composed: guide.composed, ..off(if on { 1.0 } else { 0.0 }) };
        off.at(0, 500.0)
    }

    /// The answer to [`halves`].
    fn answer_of(mut guide: Guidance, on: bool) -> Result<ModelOutput> {
        let now = now(&guide, on);
        guide.answer(halves(), &now, None)
    }

    /// Two images of two values, unconditional first.
    fn halves() -> Tensor {
        let values = [0f32, 1.0, 2.0, 4.0, 1.0, 0.0, 4.0, 8.0];
        Tensor::new(&values, &Device::Cpu).unwrap().reshape((4, 1, 1, 2)).unwrap()
    }

    #[test]
    fn guidance_is_on_between_its_ends() {
        let options = GuidanceOptions { start: 0.2, end: 0.7, ..Default::default() };
        let on: Vec<bool> = (0..10).map(|i| guide(options, false).at(i, 500.0).on).collect();
        assert_eq!(on.iter().position(|&on| on), Some(2));
        assert_eq!(on.iter().filter(|&&on| on).count(), 5);
        assert!((0..10).all(|i| guide(GuidanceOptions::default(), false).at(i, 500.0).on));
    }

    /// AUTOMATIC1111's `step / total_steps <= skip_early_cond`, over ten evaluations.
    #[test]
    fn early_steps_are_skipped_as_in_automatic1111() {
        let skipped = |start, counted| {
            let options = GuidanceOptions { start, ..Default::default() };
            let guide = Guidance { counted: Some(counted), ..guide(options, false) };
            (0..10).filter(|&i| !guide.at(i, 500.0).on).count()
        };
        // Steps 0, 1 and 2 of 10 are at or before 0.2; of 20 steps 0 to 4.
        assert_eq!([skipped(0.2, 10), skipped(0.25, 10), skipped(0.2, 20), skipped(0.0, 10)], [3, 3, 5, 0]);
    }

    /// diffusers' `rescale_noise_cfg`: with 1 the deviation is the conditional answer's.
    #[test]
    fn rescaled_guidance_has_the_conditional_deviation() -> Result<()> {
        let options = GuidanceOptions { rescale: 1.0, ..Default::default() };
        let answer = answer_of(guide(options, false), true)?;
        // u + 3 (c - u) = [3, -2], [8, 16], whose differences 5 and 8 become 1 and 4.
        let expected = [0.6, -0.4, 4.0, 8.0];
        assert!(values(&answer.output).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{}", answer.output);
        let half = GuidanceOptions { rescale: 0.5, ..Default::default() };
        let answer = answer_of(guide(half, false), true)?;
        assert!((values(&answer.output)[0] - 1.8).abs() < 1e-6);
        Ok(())
    }

    #[test]
    fn samplers_get_both_answers_where_they_need_them() -> Result<()> {
        let answer = answer_of(guide(GuidanceOptions::default(), true), true)?;
        assert_eq!(values(&answer.output), [3.0, -2.0, 8.0, 16.0]);
        assert_eq!(answer.unconditional.map(|u| values(&u)), Some(vec![0.0, 1.0, 2.0, 4.0]));
        let options = GuidanceOptions { percentile: Some(1.0), mimic_scale: Some(1.0), ..Default::default() };
        let answer = answer_of(guide(options, false), true)?;
        assert_eq!(answer.mimic.map(|mimic| values(&mimic.output)), Some(vec![1.0, 0.0, 4.0, 8.0]));
        assert!(answer.unconditional.is_none());
        let off = answer_of(guide(GuidanceOptions::default(), true), false)?;
        assert_eq!(values(&off.output), off.unconditional.map(|u| values(&u)).unwrap_or_default());
        Ok(())
    }

    /// Combined conditions stay combined without guidance: at strength 1 within the step, else as the conditional half.
    #[test]
    fn combined_conditions_hold_without_guidance_too() -> Result<()> {
        let composed = |options, both| Guidance { composed: true, ..guide(options, both) };
        let plain = || composed(GuidanceOptions::default(), false);
        assert_eq!([true, false].map(|on| now(&plain(), on).within_step), [Some(3.0), Some(1.0)]);
        assert_eq!(values(&answer_of(plain(), false)?.output), values(&halves()));
        for guide in [
            composed(GuidanceOptions { rescale: 0.5, ..Default::default() }, false),
            composed(GuidanceOptions::default(), true),
        ] {
            assert_eq!(now(&guide, false).within_step, None);
            assert_eq!(values(&answer_of(guide, false)?.output), [1.0, 0.0, 4.0, 8.0]);
        }
        Ok(())
    }

    #[test]
    fn a_strength_that_changes_between_steps_holds_for_the_rest() {
        let mut guide = Guidance::plain(3.0, true, 4);
        guide.set_strength(5.0).unwrap();
        assert_eq!(guide.at(2, 500.0).within_step, Some(5.0));
        guide.set_strength(1.0).unwrap();
        assert!(!guide.at(3, 250.0).on, "a step of strength 1 has one half");
        assert!(guide.set_strength(f64::NAN).is_err() && guide.set_strength(-1.0).is_err());
        let mut plain = Guidance::plain(1.0, false, 4);
        assert!(plain.set_strength(1.0).is_ok());
        let message = plain.set_strength(2.0).unwrap_err().to_string();
        assert!(message.contains("began without guidance"), "{message}");
    }

    #[test]
    fn schedules_are_spread_over_the_evaluations() {
        let at = |strengths: &[f64], evaluations| {
            let guide = Guidance { strengths: strengths.to_vec(), ..Guidance::plain(1.0, true, evaluations) };
            (0..evaluations).map(|i| guide.at(i, 500.0)).map(|now| now.within_step.unwrap_or(-1.0)).collect::<Vec<_>>()
        };
        assert_eq!(at(&[9.0, 7.0, 4.0], 3), [9.0, 7.0, 4.0]);
        assert_eq!(at(&[8.0, 2.0], 4), [8.0, 6.0, 4.0, 2.0]);
        assert_eq!(at(&[8.0, 4.0, 1.0, 1.0], 4), [8.0, 4.0, -1.0, -1.0]); // no guidance at strength 1
        assert_eq!(at(&[5.0, 3.0], 1), [5.0]);
        assert_eq!(at(&[3.0], 2), [3.0, 3.0]);
        assert_eq!(at(&[9.0, 1.0, 5.0], 2), [9.0, 5.0]);
    }
}
