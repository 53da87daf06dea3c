//! The twin of `cuda.rs` for builds without CUDA: nothing can be recorded.

use std::convert::Infallible;

use candle_core::Device;

use crate::error::{Error, Result};

/// A recorded run: there is none in this build.
pub struct Graph(Infallible);

/// Whether runs on this device can be recorded.
pub fn is_recordable(_device: &Device) -> bool {
    false
}

/// What is known of a run that was done once.
#[derive(Debug, Clone, Default)]
pub struct Prepared(());

/// Does `run` as it will be recorded later.
///
/// # Errors
/// None in this build.
pub fn prepare<T: Send>(_device: &Device, run: impl FnOnce() -> T + Send) -> Result<(T, Prepared)> {
    Ok((run(), Prepared(())))
}

impl Graph {
    /// Records the work that `run` gives to the card: an error in this build.
    ///
    /// # Errors
    /// [`Error::NoCuda`].
    pub fn record<E: From<Error> + Send>(
        _device: &Device,
        _prepared: &Prepared,
        _run: impl FnOnce() -> Result<(), E> + Send,
    ) -> Result<Self, E> {
        Err(Error::NoCuda.into())
    }

    /// The size of the block in bytes.
    pub fn bytes(&self) -> usize {
        match self.0 {}
    }

    /// Does `run` with the block.
    pub fn lend<T>(&self, _run: impl FnOnce() -> T) -> T {
        match self.0 {}
    }

    /// Starts the recorded work.
    ///
    /// # Errors
    /// None: there is no such graph.
    pub fn replay(&mut self) -> Result<()> {
        match self.0 {}
    }
}
