//! The sums of a group normalization whose pixels come strip by strip.

use kiln_ops::{GroupNorm, Operand};
use kiln_weights::Param;

use crate::error::Result;

/// The sums of a group normalization of one image, whose pixels come strip by strip.
pub trait Moments<T: Operand>: Sized {
    /// The sums of no pixels.
    fn new(config: GroupNorm) -> Self;

    /// Adds all pixels of `x` `(1, .., c)`, which follow those that were added before.
    fn add(&mut self, x: &T) -> Result<()>;

    /// The normalization by the sums of all pixels.
    fn finish(self, gamma: &Param, beta: &Param) -> Result<T::Statistics>;
}
