//! Markers as events of CUDA's driver.

use candle_core::Device;
use candle_core::cuda::cudarc::driver::CudaEvent;
use candle_core::cuda::cudarc::driver::sys::CUevent_flags;

use crate::cuda::driver;
use crate::error::Result;

/// A point in a card's work.
pub struct Marker(CudaEvent);

impl Marker {
    /// The point after all that `device` was given so far; `None` where that is done when calls return.
    ///
    /// # Errors
    /// [`crate::Error::Driver`].
    pub fn record(device: &Device) -> Result<Option<Self>> {
        if !device.is_cuda() {
            return Ok(None);
        }
        // Whoever waits sleeps meanwhile, and leaves the processor to others.
        let event = device.as_cuda_device()?.cuda_stream().record_event(Some(CUevent_flags::CU_EVENT_BLOCKING_SYNC));
        Ok(Some(Self(event.map_err(driver)?)))
    }

    /// Waits until the card has come to this point.
    ///
    /// # Errors
    /// [`crate::Error::Driver`]: the card's work failed, which may have begun before this point.
    pub fn wait(&self) -> Result<()> {
        self.0.synchronize().map_err(driver)
    }
}
