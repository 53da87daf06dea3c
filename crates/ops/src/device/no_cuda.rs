//! The twin of `cuda.rs` for builds without CUDA: the same functions, which say so.

use candle_core::{DType, Device, Tensor};

use super::Cards;
use crate::error::{Error, Result};

/// Opens the card of this number: an error in this build.
pub fn open_card(_ordinal: usize) -> Result<Device> {
    Err(Error::NoCuda)
}

/// The device itself: the processor's threads are shared by whoever has work for them.
pub fn open_beside(device: &Device) -> Result<Device> {
    Ok(device.clone())
}

/// An uninitialized tensor on a GPU: `None`, since this build has no such device.
pub(super) fn uninit(_shape: &[usize], _dtype: DType, _device: &Device) -> Result<Option<Tensor>> {
    Ok(None)
}

/// The cards of this machine: an error in this build.
pub fn cards() -> Result<Cards> {
    Err(Error::NoCuda)
}

/// Operators on the processor keep nothing of a device.
pub fn close(_device: &Device) {}
