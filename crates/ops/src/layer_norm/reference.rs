//! Layer normalization in candle's primitives.

use candle_core::{D, DType, Tensor};

use crate::error::Result;

pub(super) fn forward(x: &Tensor, gamma: &Tensor, beta: &Tensor, eps: f64) -> Result<Tensor> {
    let values = x.to_dtype(DType::F32)?;
    let centered = values.broadcast_sub(&values.mean_keepdim(D::Minus1)?)?;
    let variance = centered.sqr()?.mean_keepdim(D::Minus1)?;
    let y = centered
        .broadcast_div(&(variance + eps)?.sqrt()?)?
        .broadcast_mul(&gamma.to_dtype(DType::F32)?)?
        .broadcast_add(&beta.to_dtype(DType::F32)?)?;
    Ok(y.to_dtype(x.dtype())?)
}
