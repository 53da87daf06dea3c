//! Images become larger: by a network, or by a filter that needs no file.
//!
//! [`UpscaleRun::plan`] refuses everything that can be refused before weights are read; [`UpscaleRun::run`] upscales image
//! after image. [`OpenUpscaler`] and [`Enlarger`] are for programs that have their own images.

mod bytes;
mod choice;
mod enlarger;
mod input;
mod names;
mod open;
mod plan;
mod run;
mod strips;

pub use choice::UpscalerChoice;
pub(crate) use choice::filter_name;
pub use enlarger::{Enlarger, EnlargerEvent};
pub use open::OpenUpscaler;
pub use plan::{UpscaleOptions, UpscaleRun};
pub use run::{UpscaleEvent, UpscaleReport};
pub use strips::TileRows;
