//! Stand-alone activations: in feed-forward layers and the time embedding.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

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
    /// `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`: the approximation of T5's and the diffusion transformers'
    /// feed-forward layers, which configuration files call `gelu_new`, `gelu_pytorch_tanh` or `gelu-approximate`.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
}

impl Activation {
    /// Its number in `cuda/activation.cuh`.
    #[cfg(feature = "cuda")]
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Silu => 0,
            Self::QuickGelu => 1,
            Self::GeluErf => 2,
            Self::Relu => 3,
            Self::GeluTanh => 4,
        }
    }
}

/// The activation of every element of `x`, any shape.
pub fn activation(x: &Tensor, function: Activation, out: Option<&Tensor>) -> Result<Tensor> {
    backend::run(&Call { x, function }, out)
}

/// [`activation()`] as a value.
pub struct ActivationOp<'a, T = Tensor> {
    /// Any shape.
    pub x: &'a T,
    /// The function.
    pub function: Activation,
}

type Call<'a> = ActivationOp<'a>;

impl<T: Operand> Operation<T> for ActivationOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Activation(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        Ok(Cost::like(self.x))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        activation(self.x.tensor(), self.function, None).map(T::result)
    }
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
