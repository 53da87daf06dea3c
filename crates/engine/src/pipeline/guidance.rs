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
    /// The side of the tokens whose norm is that of the conditional prediction; `None` if guidance may change it.
    restored_norm: Option<usize>,
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
    /// The strength of skip-layer guidance.
    slg_scale: f64,
    /// Whether the prediction is replaced by 0: the first evaluation of CFG-Zero*.
    is_left_out: bool,
    /// The strength that the step itself applies; `None` if it gives all its predictions.
    pub(crate) within_step: Option<f64>,
}

impl EvaluationGuidance {
    /// The rows of the step.
    pub(crate) fn rows(&self) -> StepRows {
        StepRows { guided: self.on, perturbed: self.pag_scale != 0.0, skipped: self.slg_scale != 0.0 }
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
            restored_norm: None,
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
        let restored_norm = job.restored_norm;
        Self { strengths, options, network, projection, both, guided, composed, restored_norm, evaluations, counted }
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
        let skips = on && self.options.skips_at(evaluation, self.evaluations);
        let slg_scale = if skips { self.options.slg_scale } else { 0.0 };
        let is_plain = pag_scale == 0.0
            && slg_scale == 0.0
            && !self.options.zero_star
            && self.options.norm == 0.0
            && self.network.sag_scale == 0.0
            && !self.both
            && !(on && self.restored_norm.is_some())
            && self.options.rescale == 0.0
            && self.options.percentile.is_none()
            && self.projection.is_none();
        let within = if on { strength } else { 1.0 };
        EvaluationGuidance {
            on,
            timestep,
            strength,
            pag_scale,
            slg_scale,
            is_left_out: on && self.options.zero_star && evaluation == 0,
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
        let rows = now.rows();
        let guided = rows.guided;
        let has_unconditional = guided || self.composed;
        let count = 1 + usize::from(has_unconditional) + usize::from(rows.repeats());
        let n = output.dim(0)? / count;
        let part = |i: usize| output.narrow(0, i * n, n);
        let conditional = part(usize::from(has_unconditional))?;
        // `s (c - p)` of perturbed attention and of skip-layer guidance, or `s (first - degraded)` of self-attention guidance.
        let away = match (rows.repeats(), degraded) {
            (true, _) => Some(((&conditional - part(count - 1)?)? * (now.pag_scale + now.slg_scale))?),
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
        let unconditional = match self.options.zero_star {
            true => zero_star(part(0)?, &conditional)?,
            false => part(0)?,
        };
        let difference = (&conditional - &unconditional)?;
        let difference = match &mut self.projection {
            Some(projection) => projection.project(difference, &conditional)?,
            None => difference,
        };
        let guided = |scale: f64| -> Result<Tensor> {
            let guided = moved((&unconditional + (&difference * scale)?)?)?;
            let guided =
                if self.options.norm == 0.0 { guided } else { bounded(&guided, &conditional, self.options.norm)? };
            let guided = match self.restored_norm {
                Some(side) => restored(&guided, &conditional, side)?,
                None => guided,
            };
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
        let output = if now.is_left_out { output.zeros_like()? } else { output };
        Ok(ModelOutput { output, unconditional: self.both.then_some(unconditional), mimic })
    }
}

/// `unconditional` (n, c, h, w) scaled to what it has of `conditional` in each image: CFG-Zero*, arXiv 2503.18886, equation 8, as
/// in diffusers' `ClassifierFreeZeroStarGuidance`.
fn zero_star(unconditional: Tensor, conditional: &Tensor) -> Result<Tensor> {
    let sum = |products: Tensor| -> Result<Tensor> { Ok(products.flatten_from(1)?.sum_keepdim(D::Minus1)?) }; // (n, 1)
    let (product, square) = (sum(conditional.mul(&unconditional)?)?, sum(unconditional.sqr()?)?);
    let factor = product.div(&(square + 1e-8)?)?.reshape((unconditional.dim(0)?, 1, 1, 1))?;
    Ok(unconditional.broadcast_mul(&factor)?)
}

/// `guided` (n, c, h, w) with a norm of at most `factor` times that of `conditional` in each image: `cfg_normalization` of
/// diffusers' `ZImagePipeline`.
fn bounded(guided: &Tensor, conditional: &Tensor, factor: f64) -> Result<Tensor> {
    let norm =
        |tensor: &Tensor| -> Result<Tensor> { Ok(tensor.flatten_from(1)?.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?) };
    let (found, most) = (norm(guided)?, (norm(conditional)? * factor)?);
    let scaled = most.div(&found.maximum(f64::from(f32::MIN_POSITIVE))?)?;
    let factor = found.gt(&most)?.where_cond(&scaled, &found.ones_like()?)?.reshape((guided.dim(0)?, 1, 1, 1))?;
    Ok(guided.broadcast_mul(&factor)?)
}

/// `guided` (n, c, h, w) with the norm of `conditional` in each token of `side` x `side` pixels: diffusers' `QwenImagePipeline`.
fn restored(guided: &Tensor, conditional: &Tensor, side: usize) -> Result<Tensor> {
    let (n, c, h, w) = guided.dims4()?;
    let tokens = |tensor: &Tensor| tensor.reshape(vec![n, c, h / side, side, w / side, side]);
    let norm = |tensor: &Tensor| -> Result<Tensor> { Ok(tokens(tensor)?.sqr()?.sum_keepdim((1, 3, 5))?.sqrt()?) };
    let factor = norm(conditional)?.div(&norm(guided)?.maximum(f64::from(f32::MIN_POSITIVE))?)?;
    Ok(tokens(guided)?.broadcast_mul(&factor)?.reshape((n, c, h, w))?)
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
mod tests;
