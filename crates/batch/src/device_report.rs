//! The work of each engine of a run, and its waits.

use kiln_engine::Timings;

/// One engine's part of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceReport {
    /// The device.
    pub device: String,
    /// Images that it made.
    pub images: usize,
    /// Seconds from the start of the run until its first image was begun: the device was opened, and a model loaded. 0 without images.
    pub begun: f64,
    /// Seconds from the start of the run until nothing was left for it.
    pub ended: f64,
    /// The times of its stages. Its images are saved by threads of all engines.
    pub timings: Timings,
    /// Where it waited.
    pub waits: Waits,
}

/// Seconds in which the thread of an engine waited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Waits {
    /// For what all engines share: the state of the run.
    pub state: f64,
    /// For the thread that decodes, which had enough to do, and for the last images at the end.
    pub decoding: f64,
    /// For the threads that save, which had enough to do.
    pub saving: f64,
    /// For images that other engines may have given back, when no others were left.
    pub others: f64,
}
