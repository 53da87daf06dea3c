//! Observers of the inputs of the products with a weight, to measure a network layer by layer.

use std::fmt;

use candle_core::Tensor;

use crate::conv2d::Conv2d;
use crate::error::Result;
use crate::packing::Weight;

/// Gets the input of each product with a weight that has it ([`Weight::observed`]), before the product is computed: by
/// [`crate::linear`] and [`crate::conv2d`]. Strips and fused convolutions show nothing.
pub trait InputObserver: fmt::Debug + Send + Sync {
    /// `x` is the operand of a linear layer, `(.., k)`, where `config` is `None`, else that of a convolution, `(b, h, w,
    /// c_in)`. `weight` is the product's, without an observer.
    ///
    /// # Errors
    /// Errors of what it computes, which end the product.
    fn observe(&self, x: &Tensor, weight: &Weight, config: Option<Conv2d>) -> Result<()>;
}
