//! Conversions between the layout `(b, c, h, w)` of latents and images and the networks' channels-last layout.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Cpu, Kernel, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, refused, sizes};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

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
/// [`crate::Error::Shape`] where `x` is not four-dimensional.
pub fn to_channels_last(x: &Tensor) -> Result<Tensor> {
    let (b, c, h, w) = x.dims4().map_err(|_| refused(OP, "x", "(b, c, h, w)", x))?;
    let (matrix, shape, order) = ((c, h * w), [b, h, w, c], (0, 2, 3, 1));
    backend::run(&Transpose { name: "to_channels_last", x, matrix, shape, order }, None)
}

/// `(b, h, w, c)` to `(b, c, h, w)`, contiguous.
///
/// # Errors
/// [`crate::Error::Shape`] where `x` is not four-dimensional.
pub fn to_channels_first(x: &Tensor) -> Result<Tensor> {
    let (b, h, w, c) = x.dims4().map_err(|_| refused(OP, "x", "(b, h, w, c)", x))?;
    let (matrix, shape, order) = ((h * w, c), [b, c, h, w], (0, 3, 1, 2));
    backend::run(&Transpose { name: "to_channels_first", x, matrix, shape, order }, None)
}

/// [`to_channels_last`] or [`to_channels_first`] as a value.
pub struct LayoutOp<'a, T = Tensor> {
    /// `(b, c, h, w)`, or `(b, h, w, c)` for channels first.
    pub x: &'a T,
    /// Whether the channels become the last dimension; otherwise the second.
    pub channels_last: bool,
}

impl<T: Operand> Operation<T> for LayoutOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Layout(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        let shape = if self.channels_last {
            let [b, c, h, w] = sizes(OP, "x", self.x, "(b, c, h, w)")?;
            [b, h, w, c]
        } else {
            let [b, h, w, c] = sizes(OP, "x", self.x, "(b, h, w, c)")?;
            [b, c, h, w]
        };
        Ok(Cost::new(shape, self.x.dtype()))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        let x = self.x.tensor();
        if self.channels_last { to_channels_last(x) } else { to_channels_first(x) }.map(T::result)
    }
}
