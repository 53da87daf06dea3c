//! The gated activation of the transformer blocks' feed-forward layers.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::{Error, Result};
use crate::trace::Work;

const OP: &str = "geglu";

/// GEGLU (Shazeer, arXiv 2002.05202): `x` `(.., 2n)` holds values and gates, the result `(.., n)` is
/// `value * gelu_erf(gate)`, with the exact GELU `gate / 2 (1 + erf(gate / sqrt(2)))`.
///
/// # Errors
/// [`Error::Shape`] where the last dimension of `x` is odd.
pub fn geglu(x: &Tensor, out: Option<&Tensor>) -> Result<Tensor> {
    let shape = match x.dims().split_last() {
        Some((&last, outer)) if last % 2 == 0 => [outer, &[last / 2]].concat(),
        _ => return Err(Error::Shape { op: OP, operand: "x", expected: "(.., 2n)".into(), found: x.dims().to_vec() }),
    };
    backend::run(&Call { x, shape }, out)
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
