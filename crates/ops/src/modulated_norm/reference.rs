//! Modulated normalizations in candle's primitives.

use candle_core::{D, DType, Tensor};

use super::{Call, RowNorm};
use crate::error::Result;

pub(super) fn forward(call: &Call<'_>) -> Result<Tensor> {
    let Call { x, norm, gamma, scale, shift, eps } = *call;
    let values = x.to_dtype(DType::F32)?;
    let centered = match norm {
        RowNorm::Layer => values.broadcast_sub(&values.mean_keepdim(D::Minus1)?)?,
        RowNorm::Rms => values,
    };
    let square = centered.sqr()?.mean_keepdim(D::Minus1)?;
    let mut y = centered.broadcast_div(&(square + eps)?.sqrt()?)?;
    if let Some(gamma) = gamma {
        y = y.broadcast_mul(&gamma.to_dtype(DType::F32)?)?;
    }
    // (b, c) as (b, 1, .., 1, c)
    let rows = |vectors: &Tensor| -> Result<Tensor> {
        let mut shape = vec![1; x.rank()];
        (shape[0], shape[x.rank() - 1]) = (vectors.dim(0)?, vectors.dim(1)?);
        match x.rank() {
            1 => Ok(vectors.to_dtype(DType::F32)?.flatten_all()?),
            _ => Ok(vectors.to_dtype(DType::F32)?.reshape(shape)?),
        }
    };
    if let Some(scale) = scale {
        y = y.broadcast_mul(&(rows(scale)? + 1.0)?)?;
    }
    if let Some(shift) = shift {
        y = y.broadcast_add(&rows(shift)?)?;
    }
    Ok(y.to_dtype(x.dtype())?)
}
