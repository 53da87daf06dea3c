//! Pixels to channels and back.

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

/// `x` `(b, h, w, c f f)` to `(b, h f, w f, c)`, `f` being `factor`: channel `k f f + i f + j` becomes channel `k` of the
/// pixel `(i, j)` of a square, as PyTorch's `pixel_shuffle` has it.
///
/// # Errors
/// [`Error::Shape`] where `x` is not four-dimensional or `f f` does not divide its channels.
pub fn pixel_shuffle(x: &Tensor, factor: usize, out: Option<&Tensor>) -> Result<Tensor> {
    let op = "pixel_shuffle";
    match (x.dims(), factor * factor) {
        (&[b, h, w, c], square @ 1..) if c % square == 0 => {
            let sizes = Sizes { b, h, w, c: c / square, factor };
            backend::run(&Call { op, x, sizes, shuffle: true }, out)
        }
        (found, square) => {
            let expected = format!("(b, h, w, {square} c)");
            Err(Error::Shape { op, operand: "x", expected, found: found.to_vec() })
        }
    }
}

/// The inverse: `x` `(b, h f, w f, c)` to `(b, h, w, c f f)`, as PyTorch's `pixel_unshuffle` has it.
///
/// # Errors
/// [`Error::Shape`] where `x` is not four-dimensional or `f` does not divide its height and width.
pub fn pixel_unshuffle(x: &Tensor, factor: usize, out: Option<&Tensor>) -> Result<Tensor> {
    let op = "pixel_unshuffle";
    match *x.dims() {
        [b, h, w, c] if factor > 0 && h % factor == 0 && w % factor == 0 => {
            let sizes = Sizes { b, h: h / factor, w: w / factor, c, factor };
            backend::run(&Call { op, x, sizes, shuffle: false }, out)
        }
        _ => {
            let expected = format!("(b, {factor} h, {factor} w, c)");
            Err(Error::Shape { op, operand: "x", expected, found: x.dims().to_vec() })
        }
    }
}

/// Sizes of the map with fewer pixels; `c` are the channels of the other.
#[derive(Clone, Copy)]
struct Sizes {
    b: usize,
    h: usize,
    w: usize,
    c: usize,
    factor: usize,
}

impl Sizes {
    fn few_pixels(self) -> [usize; 4] {
        [self.b, self.h, self.w, self.c * self.factor * self.factor]
    }

    fn many_pixels(self) -> [usize; 4] {
        [self.b, self.h * self.factor, self.w * self.factor, self.c]
    }
}

struct Call<'a> {
    op: &'static str,
    x: &'a Tensor,
    sizes: Sizes,
    /// From channels to pixels.
    shuffle: bool,
}

impl Operator for Call<'_> {
    fn name(&self) -> &'static str {
        self.op
    }

    fn input(&self) -> &Tensor {
        self.x
    }

    fn work(&self) -> Work {
        Work::new(&[("x", self.x)]).config(self.sizes.factor)
    }

    fn reference(&self) -> Result<Tensor> {
        reference::forward(self.x, self.sizes, self.shuffle)
    }
}
