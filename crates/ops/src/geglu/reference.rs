//! GEGLU in candle's primitives.

use candle_core::{D, Tensor};

use crate::error::Result;

pub(crate) fn forward(x: &Tensor) -> Result<Tensor> {
    let n = x.dim(D::Minus1)? / 2;
    let (value, gate) = (x.narrow(D::Minus1, 0, n)?, x.narrow(D::Minus1, n, n)?.contiguous()?);
    Ok((value * gate.gelu_erf()?)?)
}
