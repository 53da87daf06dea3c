//! Runs a schedule: one step at a time, or all of it.

use crate::samplers::{self, Context, Sampler};
use crate::tensor::linear;
use crate::{Denoiser, Error, ModelOutput, NoiseSource, Point, Result, Schedule};
use candle_core::{DType, Tensor};
use std::ops::ControlFlow;

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
pub fn sample<E, A: Into<ModelOutput>>(
    schedule: &Schedule,
    mut model: impl FnMut(&Tensor, f64) -> Result<A, E>,
    latents: &Tensor,
    noise: &mut dyn NoiseSource,
    on_step: &mut dyn FnMut(&StepInfo<'_>) -> ControlFlow<()>,
) -> Result<Tensor, E>
where
    E: From<Error> + std::error::Error + Send + Sync + 'static,
{
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
pub struct Stepper<'a> {
    schedule: &'a Schedule,
    sampler: Box<dyn Sampler>,
    next: usize,
    /// The latents after raising to the next point. A retry of a failed step does not raise them again.
    raised: Option<Tensor>,
}

impl<'a> Stepper<'a> {
    /// A stepper at the schedule's start.
    pub fn new(schedule: &'a Schedule) -> Self {
        Self { schedule, sampler: samplers::new(schedule.config()), next: schedule.start(), raised: None }
    }

    /// The next evaluation's index in the schedule.
    pub fn index(&self) -> usize {
        self.next
    }

    /// The point of the next evaluation, `None` at the end.
    pub fn point(&self) -> Option<Point> {
        self.schedule.points().get(self.next).copied()
    }

    /// The number of remaining evaluations.
    pub fn remaining(&self) -> usize {
        self.schedule.points().len() - self.next
    }

    /// Evaluates the model once, at [`Stepper::point`], and returns the next latents: exactly diffusers' `prev_sample`.
    /// After an error of the model the state is unchanged, and the step can be retried (for example in a mode that
    /// needs less memory).
    pub fn step<E, A: Into<ModelOutput>>(
        &mut self,
        latents: &Tensor,
        model: &mut impl FnMut(&Tensor, f64) -> Result<A, E>,
        noise: &mut dyn NoiseSource,
    ) -> Result<Tensor, E>
    where
        E: From<Error> + std::error::Error + Send + Sync + 'static,
    {
        let len = self.schedule.points().len();
        let point = self.point().ok_or_else(|| E::from(Error::Finished { len }))?;
        let config = self.schedule.config();
        let mut boxed = |x: &Tensor, timestep| match model(x, timestep) {
            Ok(output) => Ok(output.into()),
            Err(error) => Err(Error::Model(Box::new(error))),
        };
        let denoiser = Denoiser::new(&mut boxed, config.prediction, config.threshold);
        let (schedule, index) = (self.schedule, self.next);
        let (arrival, churn) = (schedule.arrival(index), config.churn);
        let is_raised = point.sigma > arrival.sigma;
        let draws_unused = churn.draws_always
            && churn.amount > 0.0
            && !is_raised
            && schedule.step_starts().binary_search(&index).is_ok();
        let latents = match self.raised.take() {
            Some(raised) => raised,
            None => {
                if draws_unused {
                    noise.sample(latents)?;
                }
                raise(latents, arrival, point, config.s_noise, noise)?
            }
        };
        let mut context = Context { schedule, index, point, target: schedule.target(index), denoiser, noise };
        match self.sampler.step(&latents, &mut context) {
            Ok(latents) => {
                self.next += 1;
                Ok(latents)
            }
            Err(error) => {
                self.raised = (is_raised || draws_unused).then_some(latents);
                Err(unbox(error))
            }
        }
    }
}

/// Returns the latents in f32, with the noise added that takes them from `from` to the noisier point `to`: the churn of
/// arXiv 2206.00364, algorithm 2.
fn raise(x: &Tensor, from: Point, to: Point, s_noise: f64, noise: &mut dyn NoiseSource) -> Result<Tensor> {
    if to.sigma <= from.sigma {
        return Ok(x.to_dtype(DType::F32)?);
    }
    let added = (to.sigma.powi(2) - from.sigma.powi(2)).sqrt();
    linear(&[(1.0, x), (s_noise * added, &noise.sample(x)?)])
}

/// Unboxes the model's error, which was boxed to pass through the samplers, to the caller's type.
fn unbox<E>(error: Error) -> E
where
    E: From<Error> + std::error::Error + Send + Sync + 'static,
{
    match error {
        Error::Model(source) => match source.downcast::<E>() {
            Ok(own) => *own,
            Err(source) => Error::Model(source).into(),
        },
        other => other.into(),
    }
}
