//! Walking a schedule: one step at a time, or all of it.

use crate::samplers::{self, Context, Sampler};
use crate::tensor::linear;
use crate::{Answer, Denoiser, Error, NoiseSource, Point, Result, Schedule};
use candle_core::{DType, Tensor};
use std::ops::ControlFlow;

/// What the step callback sees after each model evaluation.
#[derive(Debug, Clone, Copy)]
pub struct StepInfo<'a> {
    /// The number of evaluations made before this one.
    pub index: usize,
    /// The number of evaluations of the whole run.
    pub total: usize,
    /// The timestep that the model was told.
    pub timestep: f64,
    /// The noise's factor there.
    pub sigma: f64,
    /// The latents after the step.
    pub latents: &'a Tensor,
}

/// Walks `latents` down the schedule, and gives them back in f32.
///
/// `latents` are unit noise times [`Schedule::init_noise_sigma`], or what [`Schedule::add_noise`] gives
/// at the schedule's start. `model` gets scaled latents (n, c, h, w) and a timestep, and gives a prediction of the
/// same shape (or an [`Answer`], for samplers that need more). `on_step` is called
/// after each evaluation; [`ControlFlow::Break`] ends with [`Error::Interrupted`]. An error of the model
/// comes back as it is.
pub fn sample<E, A: Into<Answer>>(
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

/// A walk down a schedule whose caller holds the latents between steps, and may change them (a masked
/// image is put back there).
pub struct Stepper<'a> {
    schedule: &'a Schedule,
    sampler: Box<dyn Sampler>,
    next: usize,
    /// The latents raised to the next point, once they are: a step that failed is not raised again.
    raised: Option<Tensor>,
}

impl<'a> Stepper<'a> {
    /// At the schedule's start.
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

    /// How many evaluations are left.
    pub fn remaining(&self) -> usize {
        self.schedule.points().len() - self.next
    }

    /// Asks the model once, at [`Stepper::point`], and gives what the latents are then: exactly
    /// diffusers' `prev_sample`. After an error of the model nothing has moved, and the step can be taken
    /// again (in a mode that needs less memory, say).
    pub fn step<E, A: Into<Answer>>(
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
            Ok(answer) => Ok(answer.into()),
            Err(error) => Err(Error::Model(Box::new(error))),
        };
        let denoiser = Denoiser::new(&mut boxed, config.prediction, config.limit);
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

/// The latents in f32, with the noise added that lies between where they are and a noisier point: the churn of
/// arXiv 2206.00364, algorithm 2.
fn raise(x: &Tensor, from: Point, to: Point, s_noise: f64, noise: &mut dyn NoiseSource) -> Result<Tensor> {
    if to.sigma <= from.sigma {
        return Ok(x.to_dtype(DType::F32)?);
    }
    let added = (to.sigma.powi(2) - from.sigma.powi(2)).sqrt();
    linear(&[(1.0, x), (s_noise * added, &noise.sample(x)?)])
}

/// The model's error was boxed to pass through the samplers; out of the box it is the caller's own again.
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
