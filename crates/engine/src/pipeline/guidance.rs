//! Classifier-free guidance: its strength, the steps that have it, and how far its result is rescaled.
//!
//! Plain guidance is part of the guided step. Rescaling, thresholding and samplers that need the unconditional prediction
//! take both halves of the step's output instead.

use candle_core::{D, Tensor};
use kiln_request::{GuidanceOptions, Job, Threshold};
use kiln_scheduler::{Convention, MimicCfg, ModelOutput};

use crate::error::Result;
use crate::pipeline::conditioning::Conditions;

/// The guidance of a job.
pub struct Guidance {
    scale: f64,
    options: GuidanceOptions,
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

impl Guidance {
    /// Guidance of strength `scale` at each of `evaluations` evaluations; none where `guided` is false.
    pub fn plain(scale: f64, guided: bool, evaluations: usize) -> Self {
        let options = GuidanceOptions::default();
        Self { scale, options, both: false, guided, composed: false, evaluations, counted: None }
    }

    /// The guidance of `job` with these conditions, over so many evaluations.
    pub(crate) fn new(job: &Job, conditions: &Conditions, evaluations: usize) -> Self {
        let (guided, composed) = (conditions.is_guided(), conditions.is_composed());
        let both = job.sampler.needs_unconditional();
        let counted = (job.sampling.convention == Convention::Automatic1111)
            .then(|| if job.sampler.evaluates_twice() { 2 * job.steps } else { job.steps });
        // A distilled network applies the strength itself.
        let scale = if job.guidance_inside { 1.0 } else { job.cfg_scale };
        Self { scale, options: job.guidance, both, guided, composed, evaluations, counted }
    }

    /// Whether an evaluation of the schedule is guided.
    pub(crate) fn is_on(&self, evaluation: usize) -> bool {
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

    /// The strength that the step itself applies; `None` where it gives both halves, or one.
    pub(crate) fn scale_within_step(&self, on: bool) -> Option<f64> {
        let plain = !self.both && self.options.rescale == 0.0 && self.options.percentile.is_none();
        let scale = if on { self.scale } else { 1.0 };
        (plain && (on || self.composed)).then_some(scale)
    }

    /// The sampler's answer from the step's output. That is guided already, or `(2 n, ..)` with the unconditional half first,
    /// or, without guidance, the conditional half alone, unless the step combines conditions.
    pub(crate) fn answer(&self, output: Tensor, on: bool) -> Result<ModelOutput> {
        if !on {
            // Where guidance does nothing, both halves are the same: the conditional one.
            let is_alone = !self.composed || self.scale_within_step(on).is_some();
            let n = output.dim(0)? / 2;
            let output = if is_alone { output } else { output.narrow(0, n, n)? };
            let unconditional = self.both.then(|| output.clone());
            return Ok(ModelOutput { unconditional, ..output.into() });
        }
        if self.scale_within_step(on).is_some() {
            return Ok(output.into());
        }
        let n = output.dim(0)? / 2;
        let (unconditional, conditional) = (output.narrow(0, 0, n)?, output.narrow(0, n, n)?);
        let difference = (&conditional - &unconditional)?;
        let guided = |scale: f64| -> Result<Tensor> {
            let guided = (&unconditional + (&difference * scale)?)?;
            if self.options.rescale == 0.0 {
                return Ok(guided);
            }
            rescaled(&guided, &conditional, self.options.rescale)
        };
        let mimic = match self.options.threshold() {
            Some(Threshold { percentile, mimic_scale }) => Some(MimicCfg { output: guided(mimic_scale)?, percentile }),
            None => None,
        };
        let output = guided(self.scale)?;
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
        Guidance { scale: 3.0, options, both, guided: true, composed: false, evaluations: 10, counted: None }
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// Two images of two values, unconditional first.
    fn halves() -> Tensor {
        let values = [0f32, 1.0, 2.0, 4.0, 1.0, 0.0, 4.0, 8.0];
        Tensor::new(&values, &Device::Cpu).unwrap().reshape((4, 1, 1, 2)).unwrap()
    }

    #[test]
    fn guidance_is_on_between_its_ends() {
        let options = GuidanceOptions { start: 0.2, end: 0.7, ..Default::default() };
        let on: Vec<bool> = (0..10).map(|i| guide(options, false).is_on(i)).collect();
        assert_eq!(on.iter().position(|&on| on), Some(2));
        assert_eq!(on.iter().filter(|&&on| on).count(), 5);
        assert!((0..10).all(|i| guide(GuidanceOptions::default(), false).is_on(i)));
    }

    /// AUTOMATIC1111's `step / total_steps <= skip_early_cond`, over ten evaluations.
    #[test]
    fn early_steps_are_skipped_as_in_automatic1111() {
        let skipped = |start, counted| {
            let options = GuidanceOptions { start, ..Default::default() };
            let guide = Guidance { counted: Some(counted), ..guide(options, false) };
            (0..10).filter(|&i| !guide.is_on(i)).count()
        };
        // Steps 0, 1 and 2 of 10 are at or before 0.2; of 20 steps 0 to 4.
        assert_eq!([skipped(0.2, 10), skipped(0.25, 10), skipped(0.2, 20), skipped(0.0, 10)], [3, 3, 5, 0]);
    }

    /// diffusers' `rescale_noise_cfg`: with 1 the deviation is the conditional answer's.
    #[test]
    fn rescaled_guidance_has_the_conditional_deviation() -> Result<()> {
        let options = GuidanceOptions { rescale: 1.0, ..Default::default() };
        let answer = guide(options, false).answer(halves(), true)?;
        // u + 3 (c - u) = [3, -2], [8, 16], whose differences 5 and 8 become 1 and 4.
        let expected = [0.6, -0.4, 4.0, 8.0];
        assert!(values(&answer.output).iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{}", answer.output);
        let half = GuidanceOptions { rescale: 0.5, ..Default::default() };
        let answer = guide(half, false).answer(halves(), true)?;
        assert!((values(&answer.output)[0] - 1.8).abs() < 1e-6);
        Ok(())
    }

    #[test]
    fn samplers_get_both_answers_where_they_need_them() -> Result<()> {
        let answer = guide(GuidanceOptions::default(), true).answer(halves(), true)?;
        assert_eq!(values(&answer.output), [3.0, -2.0, 8.0, 16.0]);
        assert_eq!(answer.unconditional.map(|u| values(&u)), Some(vec![0.0, 1.0, 2.0, 4.0]));
        let options = GuidanceOptions { percentile: Some(1.0), mimic_scale: Some(1.0), ..Default::default() };
        let answer = guide(options, false).answer(halves(), true)?;
        assert_eq!(answer.mimic.map(|mimic| values(&mimic.output)), Some(vec![1.0, 0.0, 4.0, 8.0]));
        assert!(answer.unconditional.is_none());
        let off = guide(GuidanceOptions::default(), true).answer(halves(), false)?;
        assert_eq!(values(&off.output), off.unconditional.map(|u| values(&u)).unwrap_or_default());
        Ok(())
    }

    /// Combined conditions stay combined without guidance: at strength 1 within the step, else as the conditional half.
    #[test]
    fn combined_conditions_hold_without_guidance_too() -> Result<()> {
        let composed = |options, both| Guidance { composed: true, ..guide(options, both) };
        let plain = composed(GuidanceOptions::default(), false);
        assert_eq!([true, false].map(|on| plain.scale_within_step(on)), [Some(3.0), Some(1.0)]);
        assert_eq!(values(&plain.answer(halves(), false)?.output), values(&halves()));
        for guide in [
            composed(GuidanceOptions { rescale: 0.5, ..Default::default() }, false),
            composed(GuidanceOptions::default(), true),
        ] {
            assert_eq!(guide.scale_within_step(false), None);
            assert_eq!(values(&guide.answer(halves(), false)?.output), [1.0, 0.0, 4.0, 8.0]);
        }
        Ok(())
    }
}
