//! Tensors on another device: copies between two GPUs, which are ordered with the work of both and for which the host does not
//! wait.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use crate::error::Result;

/// `tensor` on `device`: the tensor itself where it is there, else a copy.
///
/// Between two GPUs the copy begins after the work that both have been given so far, and work that either is given later
/// begins after it. So `tensor` may be dropped or written at once. The host does not wait. The data go over the link between the
/// two where [`kiln_mempool::DevicePool::share_with`] has opened their memory to each other, else the driver takes them through host
/// memory.
///
/// # Errors
/// [`crate::Error::Candle`] and [`crate::Error::Driver`] where the device has no memory or a copy fails.
pub fn to_device(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    if tensor.device().location() == device.location() {
        return Ok(tensor.clone());
    }
    match cuda::between(tensor, device)? {
        Some(copy) => Ok(copy),
        None => Ok(tensor.to_device(device)?),
    }
}
