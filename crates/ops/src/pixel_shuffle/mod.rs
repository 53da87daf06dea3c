//! Pixels to channels and back.

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod reference;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::backend::{self, Operator};
use crate::error::Result;
use crate::operation::{Cost, Elements, Operand, Operation, refused};
use crate::portable;
use crate::trace::Work;
use crate::workspace::Target;

/// `x` `(b, h, w, c f f)` to `(b, h f, w f, c)`, `f` being `factor`: channel `k f f + i f + j` becomes channel `k` of the
/// pixel `(i, j)` of a square, as PyTorch's `pixel_shuffle` has it.
///
/// # Errors
/// [`crate::Error::Shape`] where `x` is not four-dimensional or `f f` does not divide its channels.
pub fn pixel_shuffle(x: &Tensor, factor: usize, out: Option<&Tensor>) -> Result<Tensor> {
    run(x, factor, true, out)
}

/// The inverse: `x` `(b, h f, w f, c)` to `(b, h, w, c f f)`, as PyTorch's `pixel_unshuffle` has it.
///
/// # Errors
/// [`crate::Error::Shape`] where `x` is not four-dimensional or `f` does not divide its height and width.
pub fn pixel_unshuffle(x: &Tensor, factor: usize, out: Option<&Tensor>) -> Result<Tensor> {
    run(x, factor, false, out)
}

fn run(x: &Tensor, factor: usize, shuffle: bool, out: Option<&Tensor>) -> Result<Tensor> {
    let op = PixelShuffleOp { x, factor, shuffle };
    backend::run(&Call { op: op.name(), x, sizes: op.sizes()?, shuffle }, out)
}

/// [`pixel_shuffle`] or [`pixel_unshuffle`] as a value.
pub struct PixelShuffleOp<'a, T = Tensor> {
    /// `(b, h, w, c f f)`, or `(b, h f, w f, c)` for the inverse.
    pub x: &'a T,
    /// `f`.
    pub factor: usize,
    /// From channels to pixels; otherwise the inverse.
    pub shuffle: bool,
}

impl<T: Operand> PixelShuffleOp<'_, T> {
    fn name(&self) -> &'static str {
        if self.shuffle { "pixel_shuffle" } else { "pixel_unshuffle" }
    }

    fn sizes(&self) -> Result<Sizes> {
        let Self { x, factor, shuffle } = *self;
        let square = factor * factor;
        match (x.dims(), shuffle) {
            (&[b, h, w, c], true) if factor > 0 && c % square == 0 => Ok(Sizes { b, h, w, c: c / square, factor }),
            (&[b, h, w, c], false) if factor > 0 && h % factor == 0 && w % factor == 0 => {
                Ok(Sizes { b, h: h / factor, w: w / factor, c, factor })
            }
            (_, true) => Err(refused(self.name(), "x", format!("(b, h, w, {square} c)"), x)),
            (_, false) => Err(refused(self.name(), "x", format!("(b, {factor} h, {factor} w, c)"), x)),
        }
    }
}

impl<T: Operand> Operation<T> for PixelShuffleOp<'_, T> {
    fn call(&self) -> portable::Call<'_, T> {
        portable::Call::PixelShuffle(self)
    }

    fn cost(&self, _target: Target) -> Result<Cost> {
        let sizes = self.sizes()?;
        let shape = if self.shuffle { sizes.many_pixels() } else { sizes.few_pixels() };
        Ok(Cost::new(shape, self.x.dtype()))
    }

    fn compute(&self) -> Result<T>
    where
        T: Elements,
    {
        run(self.x.tensor(), self.factor, self.shuffle, None).map(T::result)
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
