//! Runs a schedule: one step at a time, or all of it.

use std::borrow::Borrow;
use std::ops::ControlFlow;

use candle_core::{DType, Tensor};

use crate::samplers::{self, Context, Sampler};
use crate::tensor::linear;
use crate::{Denoised, Denoiser, Error, ModelOutput, NoiseSource, Point, Result, Schedule};

/// The argument of the step callback, after each model evaluation.
#[derive(Debug, Clone, Copy)]
pub struct StepInfo<'a> {
    /// The number of evaluations made before this one.
    pub index: usize,
    /// The number of evaluations of the whole run.
    pub total: usize,
    /// The timestep that the model got.
    pub timestep: f64,
    /// The factor of the noise at that point.
    pub sigma: f64,
    /// The latents after the step.
    pub latents: &'a Tensor,
}

/// Denoises `latents` along the schedule, and returns them in f32.
///
/// `latents` are unit noise times [`Schedule::init_noise_sigma`], or the result of [`Schedule::add_noise`] at the
/// schedule's start. `model` gets scaled latents (n, c, h, w) and a timestep, and returns a prediction of the same
/// shape (or a [`ModelOutput`], for samplers that need more). `on_step` is called after each evaluation;
/// [`ControlFlow::Break`] ends the run with [`Error::Interrupted`]. An error of the model is returned unchanged.
pub fn sample<E: From<Error>, A: Into<ModelOutput>>(
    schedule: &Schedule,
    mut model: impl FnMut(&Tensor, f64) -> Result<A, E>,
    latents: &Tensor,
    noise: &mut dyn NoiseSource,
    on_step: &mut dyn FnMut(&StepInfo<'_>) -> ControlFlow<()>,
) -> Result<Tensor, E> {
    let mut stepper = Stepper::new(schedule);
    let total = stepper.remaining();
    let mut latents = latents.clone();
    while let Some(Point { timestep, sigma, .. }) = stepper.point() {
        let index = total - stepper.remaining();
        latents = stepper.step(&latents, &mut model, noise)?;
        if on_step(&StepInfo { index, total, timestep, sigma, latents: &latents }).is_break() {
            return Err(Error::Interrupted.into());
        }
    }
    Ok(latents)
}

/// Runs a schedule step by step. The caller owns the latents between steps, and may change them (inpainting restores
/// the masked image there).
///
/// [`Stepper::step`] calls the model itself. A caller that evaluates several steppers in one call of the model takes each
/// one's [`Stepper::evaluation`], calls the model once for all of them, and passes each its part of the output with
/// [`Stepper::advance`].
///
/// `S` is the schedule: a reference, or an [`std::sync::Arc`] for a stepper that outlives its caller.
pub struct Stepper<S: Borrow<Schedule>> {
    schedule: S,
    sampler: Box<dyn Sampler>,
    next: usize,
    /// The latents after raising to the next point. A retry of a failed step does not raise them again.
    raised: Option<Tensor>,
}

/// One evaluation of the model.
#[derive(Debug, Clone)]
pub struct Evaluation {
    /// The model's input: the latents times their point's `input_scale`, in f32.
    pub input: Tensor,
    /// The model's timestep.
    pub timestep: f64,
    /// The latents at the point of the evaluation, in f32 where they were raised to it.
    latents: Tensor,
}

impl Evaluation {
    /// The latents at the point of the evaluation, `(n, c, h, w)`.
    pub fn latents(&self) -> &Tensor {
        &self.latents
    }
}

impl<S: Borrow<Schedule>> Stepper<S> {
    /// A stepper at the schedule's start.
    pub fn new(schedule: S) -> Self {
        let (sampler, next) = (samplers::new(schedule.borrow().config()), schedule.borrow().start());
        Self { schedule, sampler, next, raised: None }
    }

    /// The schedule.
    pub fn schedule(&self) -> &Schedule {
        self.schedule.borrow()
    }

    /// The model output for the latents of `evaluation`, the next one, that corresponds to the clean image `x0` of their shape.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub fn output_for(&self, x0: &Tensor, evaluation: &Evaluation) -> Result<Tensor> {
        let (point, prediction) = (self.next_point()?, self.schedule().config().prediction);
        crate::denoiser::output_for_x0(prediction, x0, &evaluation.latents, point)
    }

    /// The image and the noise that the model output `output` says are in the latents `x` of the next evaluation.
    ///
    /// # Errors
    /// Errors of the tensors, and [`Error::ZeroSignal`] at a point without signal.
    pub fn interpret(&self, output: &Tensor, x: &Tensor) -> Result<Denoised> {
        let point = self.next_point()?;
        let config = self.schedule().config();
        let denoiser = Denoiser::new(output.clone().into(), config.prediction, config.threshold);
        denoiser.interpret(output, x, point)
    }

    fn next_point(&self) -> Result<Point> {
        let (index, len) = (self.next, self.schedule().points().len());
        self.point().ok_or(Error::Start { index, len, reason: "the schedule has no such evaluation" })
    }

    /// The clean image that the model's output for `evaluation`, the next one, predicts, in f32.
    ///
    /// # Errors
    /// [`Error::Start`] at the schedule's end, [`Error::OutputShape`] where the output does not fit, and those of tensors.
    pub fn prediction(&self, evaluation: &Evaluation, output: impl Into<ModelOutput>) -> Result<Tensor> {
        let schedule = self.schedule();
        let point = self.next_point()?;
        let config = schedule.config();
        let denoiser = Denoiser::new(output.into(), config.prediction, config.threshold);
        Ok(denoiser.denoise(&evaluation.latents, point)?.x0)
    }

    /// The next evaluation's index in the schedule.
    pub fn index(&self) -> usize {
        self.next
    }

    /// The point of the next evaluation, `None` at the end.
    pub fn point(&self) -> Option<Point> {
        self.schedule().points().get(self.next).copied()
    }

    /// The number of remaining evaluations.
    pub fn remaining(&self) -> usize {
        self.schedule().points().len() - self.next
    }

    /// Evaluates the model once, at [`Stepper::point`], and returns the next latents: exactly diffusers' `prev_sample`.
    /// After an error of the model the state is unchanged, and the step can be retried (for example in a mode that
    /// needs less memory).
    pub fn step<E: From<Error>, A: Into<ModelOutput>>(
        &mut self,
        latents: &Tensor,
        model: &mut impl FnMut(&Tensor, f64) -> Result<A, E>,
        noise: &mut dyn NoiseSource,
    ) -> Result<Tensor, E> {
        let evaluation = self.evaluation(latents, noise)?;
        let output = model(&evaluation.input, evaluation.timestep)?;
        Ok(self.advance(evaluation, output, noise)?)
    }

    /// The next evaluation of the model, for these latents. A second call before [`Stepper::advance`] returns the same
    /// evaluation, and draws no noise again.
    ///
    /// # Errors
    /// [`Error::Finished`] at the schedule's end, and those of tensors and noise.
    pub fn evaluation(&mut self, latents: &Tensor, noise: &mut dyn NoiseSource) -> Result<Evaluation> {
        let (schedule, index) = (self.schedule.borrow(), self.next);
        let len = schedule.points().len();
        let point = schedule.points().get(index).copied().ok_or(Error::Finished { len })?;
        let config = schedule.config();
        let (arrival, churn) = (schedule.arrival(index), config.churn);
        let is_raised = point.sigma > arrival.sigma;
        let draws_unused = churn.draws_always
            && churn.amount > 0.0
            && !is_raised
            && schedule.step_starts().binary_search(&index).is_ok();
        let latents = match &self.raised {
            Some(raised) => raised.clone(),
            None => {
                if draws_unused {
                    noise.sample(latents)?;
                }
                let raised = raise(latents, arrival, point, config.s_noise, noise)?;
                self.raised = (is_raised || draws_unused).then(|| raised.clone());
                raised
            }
        };
        let input = linear(&[(point.input_scale, &latents)])?;
        Ok(Evaluation { input, timestep: point.timestep, latents })
    }

    /// The next latents, from the model's output for the last evaluation of this stepper.
    ///
    /// # Errors
    /// [`Error::Finished`] at the schedule's end, [`Error::OutputShape`] and [`Error::NoUnconditional`] where the output
    /// does not fit, and those of tensors and noise.
    pub fn advance(
        &mut self,
        evaluation: Evaluation,
        output: impl Into<ModelOutput>,
        noise: &mut dyn NoiseSource,
    ) -> Result<Tensor> {
        let (schedule, index) = (self.schedule.borrow(), self.next);
        let len = schedule.points().len();
        let point = schedule.points().get(index).copied().ok_or(Error::Finished { len })?;
        let Evaluation { input, latents, .. } = evaluation;
        drop(input); // the sampler does not read it
        let config = schedule.config();
        let denoiser = Denoiser::new(output.into(), config.prediction, config.threshold);
        let mut context = Context { schedule, index, point, target: schedule.target(index), denoiser, noise };
        let latents = self.sampler.step(&latents, &mut context)?;
        (self.raised, self.next) = (None, self.next + 1);
        Ok(latents)
    }
}

/// Returns the latents in f32, with the noise added that takes them from `from` to the noisier point `to`: the churn of
/// arXiv 2206.00364, algorithm 2.
fn raise(x: &Tensor, from: Point, to: Point, s_noise: f64, noise: &mut dyn NoiseSource) -> Result<Tensor> {
    if to.sigma <= from.sigma {
        return Ok(kiln_ops::cast(x, DType::F32)?);
    }
    let added = (to.sigma.powi(2) - from.sigma.powi(2)).sqrt();
    linear(&[(1.0, x), (s_noise * added, &noise.sample(x)?)])
}
