//! Replaces `cuda.rs` in builds without CUDA, in which no device has events.

use std::convert::Infallible;

use candle_core::Device;

use crate::error::Result;

/// An event in a stream, which this build does not have.
pub(super) struct Event(Infallible);

/// Records an event in the device's stream: `None`, since no device of this build has one.
pub(super) fn event(_device: &Device) -> Result<Option<Event>> {
    Ok(None)
}

impl Event {
    /// Microseconds from `earlier` to this one.
    pub(super) fn since(&self, _earlier: &Self) -> Result<f64> {
        match self.0 {}
    }
}
