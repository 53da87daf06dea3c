//! Replaces `cuda.rs` in builds without CUDA.

use candle_core::{DType, Device, Tensor};
use kiln_mempool::DevicePool;

use super::{Gpu, Gpus};
use crate::error::{Error, Result};
use crate::w8a8::ByteNumber;

/// A handle of the GPU of this number: an error in this build.
pub(super) fn open(_ordinal: usize) -> Result<Device> {
    Err(Error::NoCuda)
}

/// An uninitialized tensor on a GPU: `None`, since this build has no such device.
pub(super) fn uninit(_shape: &[usize], _dtype: DType, _device: &Device) -> Result<Option<Tensor>> {
    Ok(None)
}

/// Whether a device computes products of bytes with a scale for each row: none in this build.
pub fn supports_w8a8(_device: &Device, _number: ByteNumber, _dtype: DType) -> bool {
    false
}

/// The GPUs of this machine: an error in this build.
pub fn gpus() -> Result<Gpus> {
    Err(Error::NoCuda)
}

/// The GPU of this number: an error in this build.
pub fn gpu(_ordinal: usize) -> Result<Gpu> {
    Err(Error::NoCuda)
}

/// Has the tensors of a GPU come from `pool`: there is none.
pub(super) fn allocate_from(_device: &Device, _pool: &DevicePool) {}

/// Frees memory that operators keep for a device: the CPU has none.
pub(super) fn close(_device: &Device) {}
