//! Image sets. Files of jobs become folders of images.
//!
//! [`JobFile`] reads jobs, [`JobSet`] numbers their images in all combinations of some axes, [`BatchRun::plan`] reads
//! the folder's journal and fixes the names and seeds of the missing images, and [`BatchRun::run`] generates those: each
//! model is loaded once, and images that differ only in texts and noise share batches. The crate knows no
//! arguments and no networks: batches run in [`kiln_engine::pipeline::run_batch`].
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use kiln_batch::{BatchEvent, BatchOptions, BatchRun, JobFile, JobSet};
//! use kiln_engine::{BatchSize, ModelOptions, Setup};
//!
//! let jobs = JobFile::read("jobs.jsonl".as_ref(), None)?;
//! let set = JobSet::new(&jobs, &[], vec!["seed=1..4".parse().unwrap()], Some("models/emoji".as_ref()))?;
//! let options = BatchOptions {
//!     folder: "images".into(),
//!     shard: None,
//!     retry: false,
//!     overwrite: false,
//!     batch_size: BatchSize::Auto,
//!     deterministic: false,
//!     model_options: ModelOptions::default(),
//!     setups: vec![Setup::default()],
//!     sheet: None,
//! };
//! let report = BatchRun::plan(set, options)?.run(&mut |event| {
//!     if let BatchEvent::Made { file, .. } = event {
//!         println!("{}", file.display());
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! println!("{} of {} images", report.known + report.made, report.all);
//! # Ok::<(), kiln_batch::Error>(())
//! ```
#![forbid(unsafe_code)]

mod device_report;
mod device_run;
mod drawing;
mod error;
mod events;
mod fields;
mod grid;
mod group_size;
mod groups;
mod image_task;
mod index;
mod journal;
mod known_sizes;
mod names;
mod overlap_worker;
mod plan;
mod problems;
mod resolve;
mod run_state;
mod runner;
mod saver;
mod set;
mod shard;
mod shared_journal;
mod sheet;
mod size_search;
mod source;
mod todos;
mod unique;
mod work_queue;

pub use device_report::{DeviceReport, Waits};
pub use error::{Error, Result, in_job};
pub use events::{BatchEvent, BatchProgress, BatchReport};
pub use fields::{Assignment, FieldError, JobSpec, job_fields};
pub use grid::Axis;
pub use journal::Seconds;
pub use plan::{BatchOptions, BatchRun, Checked};
pub use problems::{Problem, Problems};
pub use resolve::NotDownloaded;
pub use set::JobSet;
pub use shard::Shard;
pub use sheet::ContactSheet;
pub use source::{JobFile, JobFormat};
