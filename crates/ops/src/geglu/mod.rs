//! The gated activation of the transformer blocks' feed-forward layers.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, refused, with_channels};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "geglu";

/// GEGLU (Shazeer, arXiv 2002.05202): `x` `(.., 2n)` holds values and gates, the result `(.., n)` is
/// `value * gelu_erf(gate)`, with the exact GELU `gate / 2 (1 + erf(gate / sqrt(2)))`.
///
/// # Errors
/// [`crate::Error::Shape`] where the last dimension of `x` is odd.
pub fn geglu(x: &Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    backend::run(&Call { x, shape: GegluOp { x }.shape()? }, out)
}

/// [`geglu`] as a value.
pub struct GegluOp<'a, T = Tensor> {
    /// `(.., 2n)`.
    pub x: &'a T,
}

impl<T: Operand> GegluOp<'_, T> {
    /// The shape of the result.
    fn shape(&self) -> Result<Vec<usize>> {
        match self.x.dims().last() {
            Some(&width) if width % 2 == 0 => Ok(with_channels(self.x.dims(), width / 2)),
            _ => Err(refused(OP, "x", "(.., 2n)", self.x)),
        }
    }
}

impl<T: Operand> Operation<T> for GegluOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Geglu(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        Ok(Cost::new(self.shape()?, self.x.dtype()))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        geglu(self.x.tensor(), None).map(T::result)
    }
}

struct Call<'a> {
    x: &'a Tensor,
    /// The shape of the result.
    shape: Vec<usize>,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x)])
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.x)
    }
}
