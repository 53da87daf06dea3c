//! Images become larger: by a network, or by a filter that needs no file.
//!
//! [`UpscaleRun::plan`] refuses everything that can be refused before weights are read; [`UpscaleRun::run`] upscales image
//! after image. [`OpenUpscaler`] and [`Enlarger`] are for programs that have their own images.
#![forbid(unsafe_code)]

mod bytes;
mod enlarger;
mod input;
mod names;
mod plan;
mod run;
mod strips;

pub use enlarger::{Enlarger, EnlargerEvent};
pub use input::upscaled_texts;
pub use kiln_request::{OpenUpscaler, UpscalerChoice};
pub use plan::{UpscaleOptions, UpscaleRun};
pub use run::{UpscaleEvent, UpscaleReport};
pub use strips::TileRows;
