//! Times of a GPU: events in its stream.

use candle_core::Device;
use candle_core::cuda::cudarc::driver::CudaEvent;
use candle_core::cuda::cudarc::driver::sys::CUevent_flags;

use crate::cuda::driver;
use crate::error::{Error, Result};

/// An event in a stream, with the time at which the GPU reached it.
pub(super) struct Event(CudaEvent);

/// Records an event in the device's stream. `None` for the CPU.
pub(super) fn event(device: &Device) -> Result<Option<Event>> {
    let Device::Cuda(device) = device else { return Ok(None) };
    // Without flags an event has a timestamp, unlike with cudarc's default.
    let event = device.cuda_stream().record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver)?;
    Ok(Some(Event(event)))
}

impl Event {
    /// Microseconds from `earlier` to this one. Both have been reached.
    pub(super) fn since(&self, earlier: &Self) -> Result<f64> {
        let milliseconds = earlier.0.elapsed_ms(&self.0).map_err(driver)?;
        if milliseconds.is_finite() {
            return Ok(f64::from(milliseconds) * 1e3);
        }
        Err(Error::Driver(format!("CUDA's driver: {milliseconds} ms between two events")))
    }
}
