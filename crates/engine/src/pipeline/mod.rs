//! The pipeline: from a batch of a job's images to their pixels.
//!
//! A run is a list of stages over a batch ([`event::Stage`]): the texts are encoded ([`text`]), an initial image is
//! encoded where there is one ([`image_encoder`]), the denoiser runs ([`running`]), the latents are decoded ([`decoder`]).
//! [`run::run_batch`] runs them, for single calls and for image sets.

pub(crate) mod batch;
pub(crate) mod conditioning;
pub(crate) mod decoder;
pub(crate) mod denoiser;
mod evaluate;
pub(crate) mod event;
pub(crate) mod guidance;
pub(crate) mod image_encoder;
pub(crate) mod init;
mod join;
mod lengths;
pub(crate) mod overlap;
pub(crate) mod prompts;
pub(crate) mod run;
pub(crate) mod running;
pub(crate) mod step;
pub(crate) mod text;
pub(crate) mod text_cache;
pub(crate) mod text_plan;
mod throttle;
mod tokens;
pub(crate) mod trace;
