//! Replaces `cuda.rs` in builds without CUDA: all work is done when calls return.

use std::convert::Infallible;

use candle_core::Device;

use crate::error::Result;

/// A point in the work of a GPU, which this build does not have.
pub struct Marker(Infallible);

impl Marker {
    /// The point after all work that was submitted to `device` so far: `None`, since that is done.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn record(_device: &Device) -> Result<Option<Self>> {
        Ok(None)
    }

    /// Waits until the GPU has reached this point.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn wait(&self) -> Result<()> {
        match self.0 {}
    }
}
