//! A linear layer: a matrix product with the weights' transpose.

#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::{Device, Tensor};

use crate::conv2d::{Conv2d, Conv2dInputs, conv2d};
use crate::error::{Error, Result, expect_shape};
use crate::flop::linear_flop;
#[cfg(not(feature = "cuda"))]
use crate::no_cuda as cuda;
use crate::output::store;
use crate::packing::Weight;
use crate::trace::{self, Work};

const OP: &str = "linear";

/// `y = x weight^T + bias + residual`: `x` `(.., k)`, `weight` `(n, k)`, `bias` `(n)`, `residual` and the result
/// `(.., n)`.
///
/// On the processor this is a 1x1 convolution over pixels in a row, and runs as one. A weight whose rows have a type of
/// their own ([`crate::MatrixType`]) gives the bits that its numbers give in the type of `x`.
///
/// # Errors
/// [`Error::Shape`] where an operand does not fit.
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
    let work = || {
        let operands = Work::new(&[("x", x)]).weight(weight).and("bias", bias).and("residual", residual);
        operands.flop(linear_flop(rows, [n, k]))
    };
    trace::operator(OP, work, || {
        if !matches!(x.device(), Device::Cpu) {
            return match cuda::linear(x, weight, bias, residual, &shape, out)? {
                Some(y) => Ok(y),
                None => store(OP, reference::forward(x, weight, bias, residual)?, out),
            };
        }
        let pixels = |t: &Tensor, channels| t.reshape((1, 1, rows, channels));
        let out = out.map(|out| pixels(out, n)).transpose()?;
        let residual = residual.map(|residual| pixels(residual, n)).transpose()?;
        let inputs = Conv2dInputs { x: &pixels(x, k)?, weight, bias, image_bias: None, residual: residual.as_ref() };
        Ok(conv2d(inputs, Conv2d::same(1), out.as_ref())?.reshape(shape)?)
    })
}
