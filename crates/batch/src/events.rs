//! Events and the result of a batch run.

use std::path::Path;
use std::time::Duration;

use kiln_engine::{Stage, Timings};
use serde::Serialize;

use super::device_report::DeviceReport;
use super::journal::Seconds;

/// An event of a batch run.
#[derive(Debug)]
pub enum BatchEvent<'a> {
    /// A model is being loaded.
    Model(&'a str),
    /// A stage begins.
    Begin(Stage),
    /// The denoiser ran once for the current batch.
    Step {
        /// Calls that are done.
        done: usize,
        /// Total calls for the batch.
        total: usize,
    },
    /// Something did not go as planned.
    Warning(String),
    /// An image was saved.
    Made {
        /// Its number in the set, from 1.
        number: usize,
        /// Its path.
        file: &'a Path,
        /// Its seed.
        seed: u64,
        /// The times of its stages.
        seconds: Seconds,
        /// The progress of the set.
        progress: BatchProgress,
    },
    /// An image failed.
    Failed {
        /// Its number in the set, from 1.
        number: usize,
        /// The line of its job in the file.
        line: usize,
        /// The reason.
        error: &'a str,
        /// The progress of the set.
        progress: BatchProgress,
    },
}

/// The progress of a set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BatchProgress {
    /// Saved images, including those of earlier runs.
    pub done: usize,
    /// Images that failed.
    pub failed: usize,
    /// All images.
    pub all: usize,
    /// Images per second in this run.
    pub images_per_second: f64,
    /// Estimated seconds for the remaining images.
    pub seconds_left: f64,
    /// Physical memory of this process in bytes.
    pub memory: u64,
    /// GPU memory in use, in bytes.
    pub card_memory: Option<u64>,
}

/// The result of a batch run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct BatchReport {
    /// All images of this shard.
    pub all: usize,
    /// Images that this run generated.
    pub made: usize,
    /// Images that existed before.
    pub known: usize,
    /// Images that failed, now or before.
    pub failed: usize,
    /// Whether the run was interrupted.
    pub interrupted: bool,
    /// The total time.
    pub wall: Duration,
    /// The times of the stages. Images are saved while others are generated.
    pub timings: Timings,
    /// Peak physical memory of this process in bytes.
    pub peak_memory: u64,
    /// The work of each engine, in the order of the setups.
    pub devices: Vec<DeviceReport>,
}
