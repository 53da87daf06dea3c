//! Replaces `cuda.rs` in builds without CUDA, which have no GPU to copy to.

use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::HostSlab;
use crate::error::{Error, Result};

/// A ring buffer on a GPU, which this build does not have.
pub struct Ring(Infallible);

/// A copy that was submitted to a GPU, which this build does not have.
pub struct Copy(Infallible);

/// A point in the work of a GPU, which this build does not have.
pub struct Point(Infallible);

pub(super) fn write_bytes(_slab: &Tensor, _to: &mut [u8]) -> Result<()> {
    Err(Error::NoCuda)
}

impl Ring {
    /// A ring buffer on a GPU: an error in this build.
    ///
    /// # Errors
    /// [`Error::NoCuda`].
    pub fn new(
        _device: &Device,
        _dtype: DType,
        _elements: usize,
        _slabs: Vec<Arc<HostSlab>>,
        _own_stream: bool,
    ) -> Result<Self> {
        Err(Error::NoCuda)
    }

    /// The memory of the ring.
    pub fn tensor(&self) -> &Tensor {
        match self.0 {}
    }

    /// Starts a copy.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn copy(&mut self, _slab: usize, _part: Range<usize>, _offset: usize, _after: &[Arc<Point>]) -> Result<Copy> {
        match self.0 {}
    }

    /// Lets all later work of the compute stream wait for a copy.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn wait(&self, _copy: &Copy) -> Result<()> {
        match self.0 {}
    }

    /// The point after the work that was submitted to the compute stream so far.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn point(&self) -> Result<Point> {
        match self.0 {}
    }
}

impl Copy {
    /// Whether it has ended.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn is_done(&self) -> Result<bool> {
        match self.0 {}
    }

    /// Seconds that it took.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn seconds(&self) -> Result<f64> {
        match self.0 {}
    }

    /// Seconds from `point` to its end.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn seconds_after(&self, _point: &Point) -> Result<f64> {
        match self.0 {}
    }

    /// Seconds from the end of an earlier copy to its end.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn seconds_after_copy(&self, _earlier: &Self) -> Result<f64> {
        match self.0 {}
    }
}

impl Point {
    /// Whether the GPU has reached it.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn is_done(&self) -> Result<bool> {
        match self.0 {}
    }

    /// Seconds from `earlier` to this.
    ///
    /// # Errors
    /// Errors of a build with CUDA.
    pub fn seconds_after(&self, _earlier: &Self) -> Result<f64> {
        match self.0 {}
    }
}
