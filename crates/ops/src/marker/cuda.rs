//! Markers as CUDA events.

use candle_core::Device;
use candle_core::cuda::cudarc::driver::CudaEvent;
use candle_core::cuda::cudarc::driver::sys::CUevent_flags;

use crate::cuda::driver;
use crate::error::Result;

/// A point in the work of a GPU.
pub struct Marker(CudaEvent);

impl Marker {
    /// The point after all work that was submitted to `device` so far. `None` for the CPU, which is done when calls
    /// return.
    ///
    /// # Errors
    /// [`crate::Error::Driver`].
    pub fn record(device: &Device) -> Result<Option<Self>> {
        if !device.is_cuda() {
            return Ok(None);
        }
        // The waiting thread sleeps meanwhile and leaves the CPU to others.
        let event = device.as_cuda_device()?.cuda_stream().record_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC));
        Ok(Some(Self(event.map_err(driver)?)))
    }

    /// Waits until the GPU has reached this point.
    ///
    /// # Errors
    /// [`crate::Error::Driver`]: work of the GPU has failed, possibly work before this point.
    pub fn wait(&self) -> Result<()> {
        self.0.synchronize().map_err(driver)
    }
}
