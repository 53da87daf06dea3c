//! Floor 7: image sets. Files of jobs become folders of images.
//!
//! [`JobFile`] reads jobs, [`JobSet`] numbers their pictures in all combinations of some axes, [`BatchRun::plan`] looks
//! up in the folder's journal what is done and fixes names and seeds of the rest, and [`BatchRun::run`] makes what is
//! missing: each model is loaded once, and pictures that differ in nothing but texts and noise share batches.
#![forbid(unsafe_code)]

mod drawing;
mod error;
mod events;
mod fields;
mod grid;
mod groups;
mod image_task;
mod index;
mod journal;
mod names;
mod overlap_worker;
mod plan;
mod resolve;
mod run_state;
mod runner;
mod saver;
mod set;
mod shard;
mod sheet;
mod source;
mod unique;

pub use error::{Error, Result};
pub use events::{BatchEvent, BatchProgress, BatchReport};
pub use fields::Assignment;
pub use grid::Axis;
pub use journal::Seconds;
pub use plan::{BatchOptions, BatchRun};
pub use set::JobSet;
pub use shard::Shard;
pub use sheet::ContactSheet;
pub use source::{JobFile, JobFormat};
