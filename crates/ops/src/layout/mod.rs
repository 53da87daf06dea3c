//! Between the outer layout `(b, c, h, w)` of latents and images and the channels-last layout of the networks.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(test)]
mod tests;

use candle_core::Tensor;

use crate::error::{Error, Result};
#[cfg(not(feature = "cuda"))]
use crate::no_cuda as cuda;
use crate::trace::{self, Work};

const OP: &str = "layout";

/// `(b, c, h, w)` to `(b, h, w, c)`, contiguous.
///
/// # Errors
/// [`Error::Shape`] where `x` is no feature map.
pub fn to_channels_last(x: &Tensor) -> Result<Tensor> {
    let (b, c, h, w) = x.dims4().map_err(|_| shape_error("(b, c, h, w)", x))?;
    let work = || Work::new(&[("x", x)]);
    trace::operator("to_channels_last", work, || match cuda::transpose(x, (c, h * w), &[b, h, w, c])? {
        Some(y) => Ok(y),
        None => Ok(x.permute((0, 2, 3, 1))?.contiguous()?),
    })
}

/// `(b, h, w, c)` to `(b, c, h, w)`, contiguous.
///
/// # Errors
/// [`Error::Shape`] where `x` is no feature map.
pub fn to_channels_first(x: &Tensor) -> Result<Tensor> {
    let (b, h, w, c) = x.dims4().map_err(|_| shape_error("(b, h, w, c)", x))?;
    let work = || Work::new(&[("x", x)]);
    trace::operator("to_channels_first", work, || match cuda::transpose(x, (h * w, c), &[b, c, h, w])? {
        Some(y) => Ok(y),
        None => Ok(x.permute((0, 3, 1, 2))?.contiguous()?),
    })
}

fn shape_error(expected: &str, x: &Tensor) -> Error {
    Error::Shape { op: OP, operand: "x", expected: expected.into(), found: x.dims().to_vec() }
}
