//! What a set tells while it is made, and how it went.

use std::path::Path;
use std::time::Duration;

use kiln_engine::{Stage, Timings};
use serde::Serialize;

use super::journal::Seconds;

/// News of a set.
#[derive(Debug)]
pub enum BatchEvent<'a> {
    /// A model is loaded.
    Model(&'a str),
    /// A stage begins.
    Begin(Stage),
    /// The denoiser ran once for the pictures at hand.
    Step {
        /// Calls that are done.
        done: usize,
        /// All calls for them.
        total: usize,
    },
    /// Something went otherwise than planned.
    Warning(String),
    /// A picture is on the disk.
    Made {
        /// Its number in the set, from 1.
        number: usize,
        /// Where it is.
        file: &'a Path,
        /// Its seed.
        seed: u64,
        /// How long it took.
        seconds: Seconds,
        /// How far the set is.
        progress: BatchProgress,
    },
    /// A picture could not be made.
    Failed {
        /// Its number in the set, from 1.
        number: usize,
        /// The line of the file that asks for it.
        line: usize,
        /// Why.
        error: &'a str,
        /// How far the set is.
        progress: BatchProgress,
    },
}

/// How far a set is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct BatchProgress {
    /// Pictures that are on the disk, those of runs before among them.
    pub done: usize,
    /// Pictures that failed.
    pub failed: usize,
    /// All pictures.
    pub all: usize,
    /// Pictures a second, in this run.
    pub images_per_second: f64,
    /// Seconds that the rest will take at this speed.
    pub seconds_left: f64,
    /// Bytes of this process in the processor's memory.
    pub memory: u64,
    /// Bytes of the card's memory that are in use.
    pub card_memory: Option<u64>,
}

/// How a set went.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct BatchReport {
    /// All pictures of this part of the set.
    pub all: usize,
    /// Pictures that were made now.
    pub made: usize,
    /// Pictures that were there before.
    pub known: usize,
    /// Pictures that failed, now or before.
    pub failed: usize,
    /// Whether the run was stopped before its end.
    pub interrupted: bool,
    /// How long it took in all.
    pub wall: Duration,
    /// How long the stages took. What was saved was saved while others were drawn.
    pub timings: Timings,
    /// Bytes of this process in the processor's memory, at the most.
    pub peak_memory: u64,
}
