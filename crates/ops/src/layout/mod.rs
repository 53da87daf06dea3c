//! Conversions between the layout `(b, c, h, w)` of latents and images and the networks' channels-last layout.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Cpu, Kernel, Operator};
use crate::error::{Error, Result};
use crate::trace::Work;

const OP: &str = "layout";

/// `x` `(b, rows, columns)`, in whatever shape, as `(b, columns, rows)` in the shape `shape`.
struct Transpose<'a> {
    name: &'static str,
    x: &'a Tensor,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only kernels read it"))]
    matrix: (usize, usize),
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "only kernels read it"))]
    shape: [usize; 4],
    /// The order of the dimensions of `x` in the result.
    order: (usize, usize, usize, usize),
}

/// The reference runs on the CPU: candle copies strided memory as fast.
impl Kernel<Cpu> for Transpose<'_> {}

impl Operator for Transpose<'_> {
    fn name(&self) -> &'static str {
        self.name
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x)])
    }

    fn reference(&self) -> Result<Tensor> {
        Ok(self.x.permute(self.order)?.contiguous()?)
    }
}

/// `(b, c, h, w)` to `(b, h, w, c)`, contiguous.
///
/// # Errors
/// [`Error::Shape`] where `x` is not four-dimensional.
pub fn to_channels_last(x: &Tensor) -> Result<Tensor> {
    let (b, c, h, w) = x.dims4().map_err(|_| shape_error("(b, c, h, w)", x))?;
    let (matrix, shape, order) = ((c, h * w), [b, h, w, c], (0, 2, 3, 1));
    backend::run(&Transpose { name: "to_channels_last", x, matrix, shape, order }, None)
}

/// `(b, h, w, c)` to `(b, c, h, w)`, contiguous.
///
/// # Errors
/// [`Error::Shape`] where `x` is not four-dimensional.
pub fn to_channels_first(x: &Tensor) -> Result<Tensor> {
    let (b, h, w, c) = x.dims4().map_err(|_| shape_error("(b, h, w, c)", x))?;
    let (matrix, shape, order) = ((h * w, c), [b, c, h, w], (0, 3, 1, 2));
    backend::run(&Transpose { name: "to_channels_first", x, matrix, shape, order }, None)
}

fn shape_error(expected: &str, x: &Tensor) -> Error {
    Error::Shape { op: OP, operand: "x", expected: expected.into(), found: x.dims().to_vec() }
}
