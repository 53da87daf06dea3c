//! Concatenation of two feature maps along the channels: a skip connection.

mod cpu;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, refused, with_channels};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "concat_channels";

/// `a` `(.., m)` and `b` `(.., n)` with the same outer dimensions, as `(.., m + n)`.
///
/// # Errors
/// [`crate::Error::Shape`] where the outer dimensions differ.
pub fn concat_channels(a: &Tensor, b: &Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let channels = ConcatOp { a, b }.channels()?;
    backend::run(&Call { a, b, channels, shape: with_channels(a.dims(), channels.0 + channels.1) }, out)
}

/// [`concat_channels`] as a value.
pub struct ConcatOp<'a, T = Tensor> {
    /// `(.., m)`.
    pub a: &'a T,
    /// `(.., n)`.
    pub b: &'a T,
}

impl<T: Operand> ConcatOp<'_, T> {
    /// The channels of `a` and of `b`.
    fn channels(&self) -> Result<(usize, usize)> {
        match (self.a.dims().split_last(), self.b.dims().split_last()) {
            (Some((&m, outer)), Some((&n, other))) if outer == other => Ok((m, n)),
            _ => Err(refused(OP, "b", format!("the outer dimensions of {:?}", self.a.dims()), self.b)),
        }
    }
}

impl<T: Operand> Operation<T> for ConcatOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Concat(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        let (m, n) = self.channels()?;
        Ok(Cost::new(with_channels(self.a.dims(), m + n), self.a.dtype()))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        concat_channels(self.a.tensor(), self.b.tensor(), None).map(T::result)
    }
}

struct Call<'a> {
    a: &'a Tensor,
    b: &'a Tensor,
    /// The channels of `a` and of `b`.
    channels: (usize, usize),
    /// The shape of the result.
    shape: Vec<usize>,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        OP
    }

    fn input(&self) -> &Tensor {
        self.a
    }

    fn work(&self) -> Work {
        Work::new(&[("a", self.a), ("b", self.b)])
    }

    fn reference(&self) -> Result<Tensor> {
        Ok(Tensor::cat(&[self.a, self.b], self.a.rank() - 1)?)
    }
}
