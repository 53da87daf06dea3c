//! Activations that stand alone: in the text encoders' feed-forward layers and the time embedding.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use crate::error::Result;
#[cfg(not(feature = "cuda"))]
use crate::no_cuda as cuda;
use crate::output::store;
use crate::trace::{self, Work};

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
    let work = || Work::new(&[("x", x)]).config(function);
    trace::operator(OP, work, || match x.device() {
        Device::Cpu => cpu::forward(x, function, out),
        _ => match cuda::activation(x, function, out)? {
            Some(y) => Ok(y),
            None => store(OP, reference::forward(x, function)?, out),
        },
    })
}
