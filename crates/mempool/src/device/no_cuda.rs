//! Replaces `cuda.rs` in builds without CUDA. There is no value of the pool's type.

use std::convert::Infallible;

use super::{DeviceCalls, DeviceMemory, DevicePoolConfig};
use crate::error::{Error, Result};

/// The memory pool of a GPU, which this build does not have.
#[derive(Debug)]
pub struct DevicePool(Infallible);

impl DevicePool {
    /// Makes the pool of the GPU of this number.
    ///
    /// # Errors
    /// [`Error::NoCuda`] in this build.
    pub fn install(_ordinal: usize, _config: DevicePoolConfig) -> Result<Self> {
        Err(Error::NoCuda)
    }

    /// Whether this build handles the allocations of managed streams: it does not.
    pub fn intercepts() -> bool {
        false
    }

    /// Allocations of the whole process: 0 in this build.
    pub fn calls() -> DeviceCalls {
        DeviceCalls::default()
    }

    /// The memory of the pool, and that of CUDA graphs.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn memory(&self) -> Result<DeviceMemory> {
        match self.0 {}
    }

    /// Bytes that tensors have in use.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn used(&self) -> Result<u64> {
        match self.0 {}
    }

    /// Bytes that the pool has of the GPU, in use or not.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn reserved(&self) -> Result<u64> {
        match self.0 {}
    }

    /// Resets the peaks to the current values.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn reset_peaks(&self) -> Result<()> {
        match self.0 {}
    }

    /// Lets another GPU read and write this pool's memory.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn share_with(&self, _ordinal: usize) -> Result<bool> {
        match self.0 {}
    }

    /// Releases unused memory to the GPU.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn trim(&self, _threshold: f64) -> Result<u64> {
        match self.0 {}
    }
}
