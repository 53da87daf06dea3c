//! A caller's part in the jobs of an engine: noise and first latents of its own, and changes between steps.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_scheduler::{NoiseSource, Result as DrawResult};

use crate::error::{Error, Result};
use crate::pipeline::batch::{Batch, BatchNoise};
use crate::pipeline::running::{GroupId, RunningBatch};

/// Gives noise and latents to the jobs that follow, and sees and changes their latents between steps
/// ([`Engine::steer`](crate::Engine::steer)). Settings of images that were made this way do not make them again.
///
/// An error of a method ends the run and is its error; [`Error::Interrupted`] is usual, where the caller keeps the reason.
pub trait Steering: Send + Sync {
    /// Unit normal noise for a draw, image by image in row-major order. `None` takes the noise of the job's seeds.
    ///
    /// A stage that runs again after memory was out asks for the same draws again.
    ///
    /// # Errors
    /// Errors of the implementation.
    fn noise(&self, draw: &NoiseDraw) -> Result<Option<Vec<f32>>>;

    /// Latents `(n, c, h, w)` in f32, scaled for the denoiser, which replace those of the job's input images: these are not
    /// encoded.
    ///
    /// # Errors
    /// Errors of the implementation.
    fn input_latents(&self) -> Result<Option<Tensor>>;

    /// Whether [`Self::after_step`] is called. On a GPU each call waits for the step.
    fn sees_steps(&self) -> bool;

    /// Called after each call of the denoiser with the number of those that are done, that of all, and the latents
    /// `(n, c, h, w)` in f32 in the host's memory.
    ///
    /// # Errors
    /// Errors of the implementation.
    fn after_step(&self, done: usize, all: usize, latents: &Tensor) -> Result<StepChange>;
}

/// A draw of noise for the images of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoiseDraw {
    /// The number of the draw in its batch, from 0.
    pub number: usize,
    /// Whether it is for a sample of the latents of input images.
    pub is_of_input: bool,
    /// The number of the first image in its job.
    pub first: usize,
    /// `(n, c, h, w)`.
    pub shape: [usize; 4],
}

/// Changes of a run after a step.
#[derive(Debug, Clone, Default)]
pub struct StepChange {
    /// Latents `(n, c, h, w)` that replace those of the step.
    pub latents: Option<Tensor>,
    /// The strength of guidance from the next step on.
    pub cfg_scale: Option<f64>,
    /// Whether no further step runs: the latents are decoded as they are.
    pub ends: bool,
}

/// The noise of a [`Steering`]: the number of its next draw, and the place that it is drawn for.
#[derive(Clone)]
pub(crate) struct SteeredNoise {
    steering: Arc<dyn Steering>,
    first: usize,
    next: usize,
}

impl SteeredNoise {
    /// The next draw for tensors of the shape of `like` `(n, c, h, w)`, in f32 on the CPU.
    pub(crate) fn draw(&mut self, shape: [usize; 4], is_of_input: bool) -> DrawResult<Option<Tensor>> {
        let draw = NoiseDraw { number: self.next, is_of_input, first: self.first, shape };
        let values = self.steering.noise(&draw).map_err(|error| match error {
            Error::Scheduler(error) => error,
            _ => kiln_scheduler::Error::Interrupted,
        })?;
        self.next += 1;
        values.map(|values| Ok(Tensor::from_vec(values, &shape, &Device::Cpu)?)).transpose()
    }
}

/// The noise of a batch; a latent covers `f` by `f` pixels.
pub(crate) fn noise_of(steering: Option<&Arc<dyn Steering>>, batch: &Batch<'_>, f: usize) -> BatchNoise {
    let (_, first) = batch.image(0);
    let steered = |steering: &Arc<dyn Steering>| SteeredNoise { steering: steering.clone(), first, next: 0 };
    batch.noise(f).steered_by(steering.map(steered))
}

/// The latents `(n, c, h, w)` that replace those of `n` input images, where a caller gives them.
///
/// # Errors
/// [`Error::Request`] for another shape.
pub(crate) fn input_latents(
    steering: Option<&Arc<dyn Steering>>,
    n: usize,
    (c, h, w): (usize, usize, usize),
) -> Result<Option<Tensor>> {
    let given = steering.map_or(Ok(None), |steering| steering.input_latents())?;
    match given {
        Some(latents) if latents.dims() != [n, c, h, w] => {
            let found = format!("latents {:?}", latents.dims());
            Err(Error::value("init", found, format!("latents {:?}", [n, c, h, w])))
        }
        given => Ok(given),
    }
}

/// Shows a group's latents to the caller that steers, after `done` of `all` calls of the denoiser, and takes its changes.
/// True where the run ends.
///
/// # Errors
/// Errors of the caller, and [`Error::Request`] for a change that cannot be.
pub(crate) fn steer_step(
    steering: Option<&Arc<dyn Steering>>,
    running: &mut RunningBatch,
    id: GroupId,
    (done, all): (usize, usize),
) -> Result<bool> {
    let Some(steering) = steering.filter(|steering| steering.sees_steps()) else { return Ok(false) };
    let Some(group) = running.group_mut(id) else { return Ok(false) };
    let latents = group.latents().to_device(&Device::Cpu)?;
    let StepChange { latents, cfg_scale, ends } = steering.after_step(done, all, &latents)?;
    if let Some(latents) = latents {
        group.set_latents(&latents)?;
    }
    if let Some(scale) = cfg_scale {
        group.set_cfg_scale(scale)?;
    }
    Ok(ends)
}

impl BatchNoise {
    /// A sample for the latents of input images, of the shape of `like` `(n, c, h, w)`.
    pub(crate) fn sample_of_input(&mut self, like: &Tensor) -> DrawResult<Tensor> {
        match self.steered_draw(like.dims(), true)? {
            Some(drawn) => Ok(drawn.to_dtype(like.dtype())?.to_device(like.device())?),
            None => self.sample(like),
        }
    }
}
