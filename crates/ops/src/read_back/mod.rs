//! Tensors on their way to the host: copies whose end the host waits for later, or on another thread.
//!
//! `to_device` waits for all work that a GPU was given. If the host does so between two steps, the GPU is idle until the host has
//! submitted the next one.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use crate::error::Result;

/// A copy of a tensor to the host's memory that may still be under way.
pub struct ReadBack(State);

enum State {
    There(Tensor),
    UnderWay(cuda::Copy),
}

impl ReadBack {
    /// Starts the copy, after the work that the tensor's device was given so far. The tensor may be dropped or written at once. On
    /// the CPU, and if the system gives no pinned memory, the copy is there when this returns.
    ///
    /// # Errors
    /// [`crate::Error::Candle`] and [`crate::Error::Driver`] if the copy fails.
    pub fn start(tensor: &Tensor) -> Result<Self> {
        Ok(Self(match cuda::Copy::start(tensor)? {
            Some(copy) => State::UnderWay(copy),
            None => State::There(tensor.to_device(&Device::Cpu)?),
        }))
    }

    /// The copy, once it is there.
    ///
    /// # Errors
    /// [`crate::Error::Driver`]: work of the GPU has failed, possibly work before the copy.
    pub fn wait(self) -> Result<Tensor> {
        match self.0 {
            State::There(tensor) => Ok(tensor),
            State::UnderWay(copy) => copy.wait(),
        }
    }
}
