//! The twin of `cuda.rs` for builds without CUDA: no device has events.

use std::convert::Infallible;

use candle_core::Device;

use crate::error::Result;

/// A place in a card's stream: there is none in this build.
pub(super) struct Event(Infallible);

/// Puts an event into the device's stream: `None`, since no device of this build has one.
pub(super) fn event(_device: &Device) -> Result<Option<Event>> {
    Ok(None)
}

impl Event {
    /// Microseconds from `earlier` to this one.
    pub(super) fn since(&self, _earlier: &Self) -> Result<f64> {
        match self.0 {}
    }
}
