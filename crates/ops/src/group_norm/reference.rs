//! Group normalisation in candle's primitives.

use candle_core::{D, DType, Tensor};

use super::GroupNorm;
use crate::error::Result;

pub(super) fn forward(x: &Tensor, gamma: &Tensor, beta: &Tensor, config: GroupNorm) -> Result<Tensor> {
    let (b, c) = (x.dim(0)?, x.dim(D::Minus1)?);
    let pixels = x.elem_count() / (b * c).max(1);
    let grouped = x.to_dtype(DType::F32)?.reshape((b, pixels, config.num_groups, c / config.num_groups))?;
    let mean = grouped.mean_keepdim((1, 3))?; // (b, 1, num_groups, 1)
    let centred = grouped.broadcast_sub(&mean)?;
    let variance = centred.sqr()?.mean_keepdim((1, 3))?;
    let normal = centred.broadcast_div(&(variance + config.eps)?.sqrt()?)?.reshape(x.shape())?;
    let scaled = normal.broadcast_mul(&gamma.to_dtype(DType::F32)?)?.broadcast_add(&beta.to_dtype(DType::F32)?)?;
    let y = if config.silu { scaled.silu()? } else { scaled };
    Ok(y.to_dtype(x.dtype())?)
}
