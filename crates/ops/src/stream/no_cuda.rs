//! The twin of `cuda.rs` for builds without CUDA: there is no card to copy to.

use std::convert::Infallible;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};

use super::HostSlab;
use crate::error::{Error, Result};

/// A ring on a card: there is none in this build.
pub struct Ring(Infallible);

/// A copy that was given to a card: there is none in this build.
pub struct Copy(Infallible);

/// A point in a card's work: there is none in this build.
pub struct Point(Infallible);

pub(super) fn write_bytes(_slab: &Tensor, _to: &mut [u8]) -> Result<()> {
    Err(Error::NoCuda)
}

impl Ring {
    /// A ring on a card: an error in this build.
    ///
    /// # Errors
    /// [`Error::NoCuda`].
    pub fn new(
        _device: &Device,
        _dtype: DType,
        _elements: usize,
        _slabs: Vec<HostSlab>,
        _own_stream: bool,
    ) -> Result<Self> {
        Err(Error::NoCuda)
    }

    /// The ring's memory.
    pub fn tensor(&self) -> &Tensor {
        match self.0 {}
    }

    /// Starts a copy.
    ///
    /// # Errors
    /// None: there is no such ring.
    pub fn copy(&mut self, _slab: usize, _offset: usize, _after: &[Arc<Point>]) -> Result<Copy> {
        match self.0 {}
    }

    /// Has the card's work wait for a copy.
    ///
    /// # Errors
    /// None: there is no such ring.
    pub fn wait(&self, _copy: &Copy) -> Result<()> {
        match self.0 {}
    }

    /// The point after the work that the card was given so far.
    ///
    /// # Errors
    /// None: there is no such ring.
    pub fn point(&self) -> Result<Point> {
        match self.0 {}
    }
}

impl Copy {
    /// Whether it has ended.
    ///
    /// # Errors
    /// None: there is no such copy.
    pub fn is_done(&self) -> Result<bool> {
        match self.0 {}
    }

    /// Seconds that it took.
    ///
    /// # Errors
    /// None: there is no such copy.
    pub fn seconds(&self) -> Result<f64> {
        match self.0 {}
    }

    /// Seconds from `point` to its end.
    ///
    /// # Errors
    /// None: there is no such copy.
    pub fn seconds_after(&self, _point: &Point) -> Result<f64> {
        match self.0 {}
    }
}

impl Point {
    /// Whether the card has come to it.
    ///
    /// # Errors
    /// None: there is no such point.
    pub fn is_done(&self) -> Result<bool> {
        match self.0 {}
    }

    /// Seconds from `earlier` to this.
    ///
    /// # Errors
    /// None: there is no such point.
    pub fn seconds_after(&self, _earlier: &Self) -> Result<f64> {
        match self.0 {}
    }
}
