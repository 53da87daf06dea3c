//! Image sets: job files become folders of images.
//!
//! [`JobFile`] reads jobs, [`JobSet`] numbers their images in all combinations of some axes, [`BatchRun::plan`] reads
//! the folder's journal and fixes names and seeds of new images, and [`BatchRun::run`] generates missing images: each
//! model is loaded once, and images that differ only in prompts and noise share batches.

mod aside;
mod desk;
mod drawing;
mod events;
mod fields;
mod grid;
mod groups;
mod index;
mod journal;
mod names;
mod plan;
mod resolve;
mod runner;
mod saver;
mod set;
mod shard;
mod sheet;
mod source;
mod unique;

pub use events::{BatchEvent, BatchProgress, BatchReport};
pub use fields::Assignment;
pub use grid::Axis;
pub use journal::Seconds;
pub use plan::{BatchOptions, BatchRun};
pub use set::JobSet;
pub use shard::Shard;
pub use sheet::ContactSheet;
pub use source::{JobFile, JobFormat};
