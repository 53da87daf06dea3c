//! Concatenation of two feature maps along the channels: a skip connection.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::{Error, Result};
use crate::trace::Work;

const OP: &str = "concat_channels";

/// `a` `(.., m)` and `b` `(.., n)` with the same outer dimensions, as `(.., m + n)`.
///
/// # Errors
/// [`Error::Shape`] where the outer dimensions differ.
pub fn concat_channels(a: &Tensor, b: &Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let (m, n, shape) = match (a.dims().split_last(), b.dims().split_last()) {
        (Some((&m, outer)), Some((&n, other))) if outer == other => (m, n, [outer, &[m + n]].concat()),
        _ => {
            let expected = format!("the outer dimensions of {:?}", a.dims());
            return Err(Error::Shape { op: OP, operand: "b", expected, found: b.dims().to_vec() });
        }
    };
    backend::run(&Call { a, b, channels: (m, n), shape }, out)
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
