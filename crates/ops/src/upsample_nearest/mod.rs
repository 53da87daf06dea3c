//! Nearest-neighbor upsampling.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, expect, refused, sizes};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

const OP: &str = "upsample_nearest";

/// `x` `(b, h, w, c)` to `(b, h_out, w_out, c)`, every pixel taken from `(floor(i h / h_out), floor(j w / w_out))`.
///
/// The networks double the size, or match the odd size of a skip connection. The index is computed in f32, as PyTorch's
/// `interpolate(mode="nearest")` does.
///
/// # Errors
/// [`crate::Error::Shape`] where `x` is not four-dimensional or has no pixels.
pub fn upsample_nearest(x: &Tensor, size: (usize, usize), out: Option<&Tensor>) -> Result<Tensor> {
    UpsampleOp { x, size, out }.shape()?;
    backend::run(&Call { x, size }, out)
}

/// [`upsample_nearest`] as a value.
pub struct UpsampleOp<'a, T = Tensor> {
    /// `(b, h, w, c)`.
    pub x: &'a T,
    /// Height and width of the result.
    pub size: (usize, usize),
    /// `(b, size.0, size.1, c)`.
    pub out: Option<&'a T>,
}

impl<T: Operand> UpsampleOp<'_, T> {
    /// The shape of the result.
    fn shape(&self) -> Result<[usize; 4]> {
        let [b, h, w, c] = sizes(OP, "x", self.x, "(b, h, w, c)")?;
        if h == 0 || w == 0 {
            return Err(refused(OP, "x", "(b, h, w, c)", self.x));
        }
        let shape = [b, self.size.0, self.size.1, c];
        expect(OP, "out", self.out, &shape)?;
        Ok(shape)
    }
}

impl<T: Operand> Operation<T> for UpsampleOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::Upsample(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        Ok(Cost::new(self.shape()?, self.x.dtype()))
    }

    fn out(&self) -> Option<&T> {
        self.out
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        upsample_nearest(self.x.tensor(), self.size, self.out.map(T::tensor)).map(T::result)
    }
}

struct Call<'a> {
    x: &'a Tensor,
    /// Height and width of the result.
    size: (usize, usize),
}

impl Call<'_> {
    /// The row and the column of `x` for each row and each column of the result.
    fn sources(&self) -> Result<(Vec<usize>, Vec<usize>)> {
        let (_, h, w, _) = self.x.dims4()?;
        Ok((sources(h, self.size.0), sources(w, self.size.1)))
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
        Work::new(&[("x", self.x)])
    }

    fn reference(&self) -> Result<Tensor> {
        let (rows, columns) = self.sources()?;
        reference::forward(self.x, &rows, &columns)
    }
}

/// The distance of the input index between two output indices.
fn scale(size: usize, size_out: usize) -> f32 {
    size as f32 / size_out as f32
}

/// The input index of each output index.
fn sources(size: usize, size_out: usize) -> Vec<usize> {
    let scale = scale(size, size_out);
    (0..size_out).map(|i| ((i as f32 * scale) as usize).min(size - 1)).collect()
}
