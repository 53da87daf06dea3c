//! The twin of `cuda.rs` for builds without CUDA: there is no such pool.

use std::convert::Infallible;

use super::{DeviceCalls, DeviceMemory, DevicePoolConfig};
use crate::error::{Error, Result};

/// The pool of a card's memory: there is none in this build.
#[derive(Debug)]
pub struct DevicePool(Infallible);

impl DevicePool {
    /// Makes the pool of the card of this number: an error in this build.
    ///
    /// # Errors
    /// [`Error::NoCuda`].
    pub fn install(_ordinal: usize, _config: DevicePoolConfig) -> Result<Self> {
        Err(Error::NoCuda)
    }

    /// Requests of the whole process: none in this build.
    pub fn calls() -> DeviceCalls {
        DeviceCalls::default()
    }

    /// What the pool holds.
    ///
    /// # Errors
    /// None: there is no such pool.
    pub fn memory(&self) -> Result<DeviceMemory> {
        match self.0 {}
    }

    /// Bytes that tensors have in use.
    ///
    /// # Errors
    /// None: there is no such pool.
    pub fn used(&self) -> Result<u64> {
        match self.0 {}
    }

    /// Starts the peaks anew.
    ///
    /// # Errors
    /// None: there is no such pool.
    pub fn reset_peaks(&self) -> Result<()> {
        match self.0 {}
    }

    /// Gives memory back.
    ///
    /// # Errors
    /// None: there is no such pool.
    pub fn trim(&self, _threshold: f64) -> Result<u64> {
        match self.0 {}
    }
}
