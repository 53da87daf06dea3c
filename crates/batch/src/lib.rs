//! Image sets. Files of jobs become folders of images.
//!
//! [`JobFile`] reads jobs, [`JobSet`] numbers their images in all combinations of some axes, [`BatchRun::plan`] reads
//! the folder's journal and fixes the names and seeds of the missing images, and [`BatchRun::run`] generates those: each
//! model is loaded once, and images that differ only in texts and noise share batches. The crate knows no
//! arguments and no networks: batches run in [`kiln_engine::pipeline::run_batch`].
//!
//! `batch` reads a file of requests, one image each. On a GPU a thread (`batch/overlap_worker.rs`) encodes the next
//! texts and decodes finished latents while steps run, on a second stream with its own weights; values pass through
//! host memory, so that the streams share no tensor. With several devices each has an engine on a thread of its own
//! (`batch/device_run.rs`), and all take from `batch/work_queue.rs`, which prefers the model and the group of images
//! that an engine has loaded. What one cannot make goes to another that has not tried it; a lost device gives back what
//! it holds. The batch size of a group (`batch/group_size.rs`) is given or searched while its images are made
//! (`size_search.rs`, which knows times alone), and kept for later runs (`known_sizes.rs`). They share the state of the
//! set (`run_state.rs`), which a lock gives to one at a time. An `ImageTask` carries an image from latents to pixels to
//! a file. Threads compress and save. The journal records an image before its file gets its name, so that a kill at any
//! moment loses only what was not yet on the disk.
//!
//! The engines of several devices have slabs in host memory in common (`weights/shared.rs`, `Setup::shared`): all of
//! the CPU's, and the pinned copies from which a GPU's are streamed. The first engine that needs a slab makes it, the
//! last one frees it. Slabs with a LoRA are each engine's own, and so are the buffers of streaming on the CPU. With
//! `kiln batch --per-node` (`DeviceList::per_node`, `setup/topology.rs`) each engine has all weights for itself: its
//! threads are kept on the CPUs of a NUMA node, and what they write first is in the memory of that node. Plans count
//! the weights for each engine.
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

mod assignment;
mod device_report;
mod device_run;
mod drawing;
mod error;
mod events;
mod grid;
mod group_size;
mod groups;
mod image_task;
mod index;
mod journal;
mod journal_file;
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
mod work_queue;

pub use assignment::Assignment;
pub use device_report::{DeviceReport, Waits};
pub use error::{Error, Result, in_job};
pub use events::{BatchEvent, BatchProgress, BatchReport};
pub use grid::Axis;
pub use journal::Seconds;
pub use plan::{BatchOptions, BatchRun, Checked};
pub use problems::{Problem, Problems};
pub use resolve::NotDownloaded;
pub use set::JobSet;
pub use shard::Shard;
pub use sheet::ContactSheet;
pub use source::{JobFile, JobFormat};
