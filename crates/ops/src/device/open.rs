//! GPUs that are open, each handle for one user.

use std::ops::Deref;

use candle_core::{Device, DeviceLocation};
use kiln_mempool::DevicePool;

use super::cuda;
use crate::error::Result;

/// A device that one user has to itself: a GPU with a stream of its own, or the CPU.
///
/// Two users of one stream would capture each other's work into their graphs, and free the workspace that the other's graphs read.
/// When this is dropped, the workspace is freed, and the next user in this process gets the handle: candle loads its code and its
/// libraries again for every handle that it makes. Drop it after all that is on the device.
#[derive(Debug)]
pub struct OpenDevice(Device);

/// Opens the GPU of this number, with one stream for all compute.
///
/// The stream is not the per-thread default stream: tensors that move between host threads would race on it.
///
/// # Errors
/// [`crate::Error::NoCuda`] in builds without CUDA, `Error::Library` if the driver, cuBLAS or cuBLASLt is missing,
/// [`crate::Error::Candle`] if the GPU cannot be opened.
pub fn open_gpu(ordinal: usize) -> Result<OpenDevice> {
    cuda::open(ordinal).map(OpenDevice)
}

/// Opens the GPU of `device` with another stream, whose work runs concurrently with that of `device` and is not ordered
/// with it. The two share no tensors; values are copied through host memory. The CPU is returned as it is, since all
/// its users share its threads.
///
/// # Errors
/// See [`open_gpu`].
pub fn open_second_stream(device: &Device) -> Result<OpenDevice> {
    match device.location() {
        DeviceLocation::Cuda { gpu_id } => open_gpu(gpu_id),
        _ => Ok(OpenDevice(device.clone())),
    }
}

impl OpenDevice {
    /// Has the tensors of a GPU come from `pool` until that is dropped.
    pub fn allocate_from(&self, pool: &DevicePool) {
        cuda::allocate_from(&self.0, pool);
    }
}

impl Deref for OpenDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.0
    }
}

impl Drop for OpenDevice {
    fn drop(&mut self) {
        cuda::close(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
    fn a_handle_has_one_user_at_a_time() {
        let (first, second) = (open_gpu(0).unwrap(), open_gpu(0).unwrap());
        assert!(!first.same_device(&second));
        let handle = Device::clone(&first);
        drop(first);
        assert!(open_gpu(0).unwrap().same_device(&handle), "it is used again");
    }
}
