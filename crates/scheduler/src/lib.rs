//! Noise schedules, samplers and seeded noise.
//!
//! This crate turns a `scheduler_config.json` and a number of steps into a list of noise
//! levels, and denoises latents along it. The model is a closure, so that all of the crate is tested against diffusers'
//! numbers without a network.
//!
//! The crate loads no files, picks no device, and does not depend on U-Nets, prompts or guidance scales.
//!
//! The main types:
//!
//! - [`SamplerKind`] and [`SigmaSchedule`] list the samplers and schedules, with the names that other programs use.
//!   [`SamplerOptions`] are the other settings of a sampler;
//! - [`SchedulerConfig`] is the parsed JSON. [`SchedulerConfig::resolve`] adds the defaults of the chosen sampler's
//!   diffusers class, and returns a [`Resolved`];
//! - a [`Process`] is how latents become noise: by betas, or as a [`Flow`]. [`FlowInputs`] are what a flow model's family and
//!   the image's size add to the configuration;
//! - a [`Schedule`] is the list of [`Point`]s at which the model is evaluated;
//! - a [`Denoiser`] converts the model's output at a point to `x0` and `eps`;
//! - a [`Stepper`] takes one step at a time, and several of them can share one call of the model. [`sample`] runs a whole
//!   schedule with one;
//! - [`ImageNoise`] yields the numbers of PyTorch's generators, one generator for each image, or increments of Brownian
//!   paths.
//!
//! ```
//! use kiln_scheduler::{Error, ImageNoise, SamplerKind, Schedule, SchedulerConfig, SigmaSchedule, sample};
//! use std::ops::ControlFlow;
//!
//! let config = SchedulerConfig::from_json(r#"{"_class_name": "DDIMScheduler", "steps_offset": 1}"#)?;
//! let settings = config.resolve(SamplerKind::EulerA, SigmaSchedule::Default)?;
//! let schedule = Schedule::new(&settings, 20)?;
//! let mut noise = ImageNoise::new(42, 2); // two images, seeds 42 and 43
//! let start = (noise.latents((4, 8, 8))? * schedule.init_noise_sigma())?;
//! let model = |x: &candle_core::Tensor, _timestep: f64| Ok::<_, Error>(x.affine(0.5, 0.0)?);
//! let latents = sample(&schedule, model, &start, &mut noise, &mut |_| ControlFlow::Continue(()))?;
//! assert_eq!(latents.dims(), [2, 4, 8, 8]);
//! # Ok::<(), Error>(())
//! ```
#![forbid(unsafe_code)]

mod brownian;
mod choice;
mod class;
mod config;
mod convention;
mod denoiser;
mod error;
mod flow;
mod kind;
mod mimic;
mod named;
mod names;
mod noise;
mod options;
mod point;
mod resolve;
mod resolved;
mod rng;
mod samplers;
mod sampling;
mod schedule;
mod serde_ids;
mod sigma_range;
mod sigma_schedule;
mod sigmas;
mod spacing;
mod table;
mod tensor;
mod training;

pub use choice::SamplerChoice;
pub use config::SchedulerConfig;
pub use convention::Convention;
pub use denoiser::{Denoised, Denoiser, MimicCfg, ModelOutput, Prediction, ThresholdMode};
pub use error::{Error, Result};
pub use flow::{Flow, FlowGrid, FlowInputs, FlowMu, FlowShift, TimeShift};
pub use kind::{FlowForm, SamplerKind};
pub use names::{MAX_NAME, closest, number_text, short_name};
pub use noise::{ImageNoise, NoiseOptions, NoisePart, NoiseSource, Variation};
pub use options::{Churn, SamplerOptions, limits};
pub use point::Point;
pub use resolved::{
    BetaSchedule, FinalSigma, Process, Resolved, SecondOrder, SigmaGrid, Solver, Spacing, TimestepRule, UniPcScale,
    Variance,
};
pub use rng::{CpuRng, CudaRng, RngKind};
pub use sampling::{Evaluation, StepInfo, Stepper, sample};
pub use schedule::Schedule;
pub use sigma_range::{InitialNoise, SigmaRange};
pub use sigma_schedule::{ScheduleChoice, SigmaSchedule};
