//! Replaces `cuda.rs` in builds without CUDA, which can capture nothing.

use std::convert::Infallible;

use candle_core::Device;

use crate::error::{Error, Result};

/// A captured run, which this build does not have.
pub struct Graph(Infallible);

/// Whether runs on this device can be captured.
pub fn is_recordable(_device: &Device) -> bool {
    false
}

/// The results of a first run without capture.
#[derive(Debug, Clone, Default)]
pub struct Prepared(());

/// Runs `run` without capture.
///
/// # Errors
/// Errors of a build with CUDA.
pub fn prepare<T: Send>(_device: &Device, run: impl FnOnce() -> T + Send) -> Result<(T, Prepared)> {
    Ok((run(), Prepared(())))
}

impl Graph {
    /// Captures the work that `run` submits to the GPU: an error in this build.
    ///
    /// # Errors
    /// [`Error::NoCuda`].
    pub fn record<E: From<Error> + Send>(
        _device: &Device,
        _prepared: &Prepared,
        _others: &[&Self],
        _run: impl FnOnce() -> Result<(), E> + Send,
    ) -> Result<Self, E> {
        Err(Error::NoCuda.into())
    }

    /// Whether its block is large enough for another run.
    pub fn has_memory_for(&self, _other: &Prepared) -> bool {
        match self.0 {}
    }

    /// The size of the block in bytes.
    pub fn bytes(&self) -> usize {
        match self.0 {}
    }

    /// Runs `run`, with its allocations from the graph's block.
    pub fn with_arena<T>(&self, _run: impl FnOnce() -> T) -> T {
        match self.0 {}
    }

    /// Launches the captured work.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn replay(&mut self) -> Result<()> {
        match self.0 {}
    }
}
