//! The pipeline: from a batch of a job's images to their pixels.

pub(crate) mod batch;
pub(crate) mod conditioning;
pub(crate) mod decoder;
mod evaluate;
pub(crate) mod event;
pub(crate) mod guidance;
mod lengths;
pub(crate) mod overlap;
pub(crate) mod run;
pub(crate) mod step;
pub(crate) mod text;
pub(crate) mod text_cache;
mod throttle;
pub(crate) mod trace;
