//! Nearest-neighbor upsampling.

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

const OP: &str = "upsample_nearest";

/// `x` `(b, h, w, c)` to `(b, h_out, w_out, c)`, every pixel taken from `(floor(i h / h_out), floor(j w / w_out))`.
///
/// The networks double the size, or match the odd size of a skip connection. The index is computed in f32, as PyTorch's
/// `interpolate(mode="nearest")` does.
///
/// # Errors
/// [`Error::Shape`] where `x` is not four-dimensional or has no pixels.
pub fn upsample_nearest(x: &Tensor, (h_out, w_out): (usize, usize), out: Option<&Tensor>) -> Result<Tensor> {
    let error = || Error::Shape { op: OP, operand: "x", expected: "(b, h, w, c)".into(), found: x.dims().to_vec() };
    let (_, h, w, _) = x.dims4().map_err(|_| error())?;
    if h == 0 || w == 0 {
        return Err(error());
    }
    backend::run(&Call { x, size: (h_out, w_out) }, out)
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
