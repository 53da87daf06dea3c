//! The twin of `cuda.rs` for builds without CUDA: all work is done when calls return.

use std::convert::Infallible;

use candle_core::Device;

use crate::error::Result;

/// A point in a card's work: there is none in this build.
pub struct Marker(Infallible);

impl Marker {
    /// The point after all that `device` was given so far: `None`, since that is done.
    ///
    /// # Errors
    /// None.
    pub fn record(_device: &Device) -> Result<Option<Self>> {
        Ok(None)
    }

    /// Waits until the card has come to this point.
    ///
    /// # Errors
    /// None: there is no such point.
    pub fn wait(&self) -> Result<()> {
        match self.0 {}
    }
}
