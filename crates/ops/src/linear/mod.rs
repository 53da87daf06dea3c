//! A linear layer: a matrix product with the transposed weight.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::{Error, Result, expect_shape};
use crate::flop::linear_flop;
use crate::packing::Weight;
use crate::trace::Work;

const OP: &str = "linear";

/// `y = x weight^T + bias + residual`: `x` `(.., k)`, `weight` `(n, k)`, `bias` `(n)`, `residual` and the result
/// `(.., n)`.
///
/// On the CPU this is a 1x1 convolution over one row of pixels. A weight in a storage type of its own
/// ([`crate::MatrixType`]) gives the same bits as its dequantized matrix in the type of `x`.
///
/// # Errors
/// [`Error::Shape`] where an operand does not fit; those of the weight's observer ([`Weight::observed`]).
pub fn linear(
    x: &Tensor,
    weight: &Weight,
    bias: Option<&Tensor>,
    residual: Option<&Tensor>,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let shape_error = |operand, expected: String, found: &Tensor| Error::Shape {
        op: OP,
        operand,
        expected,
        found: found.dims().to_vec(),
    };
    let [n, 1, 1, k] = weight.shape() else {
        return Err(Error::Config { op: OP, message: "the weight is a convolution's, expected (n, k)".into() });
    };
    let (rows, shape) = match x.dims().split_last() {
        Some((&last, outer)) if last == k => (outer.iter().product::<usize>(), [outer, &[n]].concat()),
        _ => return Err(shape_error("x", format!("(.., {k})"), x)),
    };
    if let Some(bias) = bias {
        expect_shape(OP, "bias", bias.dims(), &[n])?;
    }
    if let Some(residual) = residual {
        expect_shape(OP, "residual", residual.dims(), &shape)?;
    }
    if let Some(out) = out {
        expect_shape(OP, "out", out.dims(), &shape)?;
    }
    let weight = &*weight.observe(x, None)?;
    backend::run(&Call { x, weight, bias, residual, rows, shape }, out)
}

struct Call<'a> {
    x: &'a Tensor,
    weight: &'a Weight,
    bias: Option<&'a Tensor>,
    residual: Option<&'a Tensor>,
    /// Rows of `x` and of the result.
    rows: usize,
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
        let [n, _, _, k] = self.weight.shape();
        let operands = Work::new(&[("x", self.x)]).weight(self.weight).and("bias", self.bias);
        operands.and("residual", self.residual).flop(linear_flop(self.rows, [n, k]))
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.x, self.weight, self.bias, self.residual)
    }
}
