//! A linear layer: a matrix product with the transposed weight.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub(crate) mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::{Error, Result};
use crate::flop::linear_flop;
use crate::matrix::linear_workspace;
use crate::operation::{Cost, Elements, Operand, Operation, WeightOperand, expect, refused, rows_and_channels};
use crate::packing::Weight;
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

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
    let (rows, shape) = LinearOp { x, weight, bias, residual }.shape()?;
    let weight = &*weight.observe(x, None)?;
    backend::run(&Call { x, weight, bias, residual, rows, shape }, out)
}

/// [`linear`] as a value.
pub struct LinearOp<'a, T: Operand = Tensor> {
    /// `(.., k)`.
    pub x: &'a T,
    /// `(n, k)`.
    pub weight: &'a T::Weight,
    /// `(n)`.
    pub bias: Option<&'a T>,
    /// `(.., n)`.
    pub residual: Option<&'a T>,
}

impl<T: Operand> LinearOp<'_, T> {
    /// The number of rows, and the shape of the result.
    fn shape(&self) -> Result<(usize, Vec<usize>)> {
        let [n, 1, 1, k] = self.weight.shape() else {
            return Err(Error::Config { op: OP, message: "the weight is a convolution's, expected (n, k)".into() });
        };
        let (rows, shape) = match self.x.dims().split_last() {
            Some((&last, outer)) if last == k => (outer.iter().product::<usize>(), [outer, &[n]].concat()),
            _ => return Err(refused(OP, "x", format!("(.., {k})"), self.x)),
        };
        expect(OP, "bias", self.bias, &[n])?;
        expect(OP, "residual", self.residual, &shape)?;
        Ok((rows, shape))
    }
}

impl<T: Operand> Operation<T> for LinearOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Linear(self)
    }

    fn cost(&self, target: Target) -> Result<Cost> {
        let (rows, shape) = self.shape()?;
        let ([n, _, _, k], dtype) = (self.weight.shape(), self.x.dtype());
        let workspace = match self.weight.eight_bits() {
            Some(kind) => kind.workspace([1, rows, k], true),
            None => linear_workspace(target, dtype, self.weight.matrix(), [n, k]),
        };
        Ok(Cost::new(shape, dtype).workspace(workspace).flop(linear_flop(rows, [n, k])))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let Self { x, weight, bias, residual } = *self;
        linear(x.tensor(), weight, bias.map(T::tensor), residual.map(T::tensor), None).map(T::result)
    }
}

/// Operands and arithmetic of the layer, for a trace.
pub(crate) fn work(x: &Tensor, weight: &Weight, bias: Option<&Tensor>) -> Work {
    let ([n, _, _, k], (rows, _)) = (weight.shape(), rows_and_channels(x.dims()));
    Work::new(&[("x", x)]).weight(weight).and("bias", bias).flop(linear_flop(rows, [n, k]))
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
        work(self.x, self.weight, self.bias).and("residual", self.residual)
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.x, self.weight, self.bias, self.residual)
    }
}
