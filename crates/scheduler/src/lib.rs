//! Noise schedules, samplers and seeded noise.
//!
//! Floor 0 of the house: this crate turns a `scheduler_config.json` and a number of steps into the
//! noise levels to visit, and walks an image down them. It takes the model as a closure, so all of it
//! is tested against diffusers' numbers without a network.
//!
//! It will never load a file, know what a U-Net, a prompt or a guidance scale is, or pick a device.
//!
//! The way through it, one file each:
//!
//! - [`SamplerKind`] and [`SigmaSchedule`] are what there is, with everybody's names; [`SamplerOptions`] is what
//!   can be said besides;
//! - [`SchedulerConfig`] is the JSON as it stands; [`SchedulerConfig::resolve`] fills in what the chosen
//!   sampler's diffusers class would, and gives a [`Resolved`];
//! - a [`Schedule`] is the list of [`Point`]s at which the model is asked;
//! - a [`Denoiser`] turns the model's answer at a point into `x0` and `eps`;
//! - [`sample`] walks the whole schedule, a [`Stepper`] takes one step at a time;
//! - [`ImageNoise`] draws what PyTorch's generators draw, one for each image, or follows Brownian paths.
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
mod class;
mod config;
mod convention;
mod denoiser;
mod error;
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
mod tensor;
mod training;

pub use config::SchedulerConfig;
pub use convention::Convention;
pub use denoiser::{Answer, Denoised, Denoiser, Limit, Mimic, Model, Prediction};
pub use error::{Error, Result};
pub use kind::{SamplerChoice, SamplerKind};
pub use names::{closest, number_text};
pub use noise::{ImageNoise, NoiseOptions, NoiseSource, Variation};
pub use options::{Churn, SamplerOptions, limits};
pub use point::Point;
pub use resolved::{
    BetaSchedule, FinalSigma, Resolved, SecondOrder, SigmaGrid, Solver, Spacing, TimestepRule, UniPcScale, Variance,
};
pub use rng::{CpuRng, CudaRng, RngKind};
pub use sampling::{StepInfo, Stepper, sample};
pub use schedule::Schedule;
pub use sigma_range::{InitialNoise, SigmaRange};
pub use sigma_schedule::{ScheduleChoice, SigmaSchedule};
