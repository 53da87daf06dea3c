//! Stand-alone activations: in the text encoders' feed-forward layers and the time embedding.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::Result;
use crate::trace::Work;

const OP: &str = "activation";

/// An element-wise function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x / (1 + exp(-1.702 x))`: the approximation of GELU that OpenAI's CLIP was trained with.
    QuickGelu,
    /// `x / 2 (1 + erf(x / sqrt(2)))`: the exact form, which configuration files call `gelu`.
    GeluErf,
    /// `max(x, 0)`.
    Relu,
}

/// The activation of every element of `x`, any shape.
pub fn activation(x: &Tensor, function: Activation, out: Option<&Tensor>) -> Result<Tensor> {
    backend::run(&Call { x, function }, out)
}

struct Call<'a> {
    x: &'a Tensor,
    function: Activation,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x)]).config(self.function)
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.x, self.function)
    }
}
