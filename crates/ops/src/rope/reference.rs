//! Rotary position embeddings in candle's primitives.

use candle_core::{D, DType, Tensor};

use super::{Call, RopePairs, Shapes};
use crate::error::Result;

pub(super) fn forward(call: &Call<'_>, Shapes { b, s, head_dim, by_image }: Shapes) -> Result<Tensor> {
    let Call { x, cos, sin, norm, num_heads, pairs } = *call;
    let half = head_dim / 2;
    let mut heads = x.to_dtype(DType::F32)?.reshape((b, s, num_heads, head_dim))?;
    if let Some((gamma, eps)) = norm {
        let square = (heads.sqr()?.mean_keepdim(D::Minus1)? + eps)?;
        heads = heads.broadcast_div(&square.sqrt()?)?.broadcast_mul(&gamma.to_dtype(DType::F32)?)?;
    }
    let table = |table: &Tensor| table.reshape((if by_image { b } else { 1 }, s, 1, half));
    let (cos, sin) = (table(cos)?, table(sin)?);
    let (first, second) = match pairs {
        RopePairs::Halves => (heads.narrow(D::Minus1, 0, half)?, heads.narrow(D::Minus1, half, half)?),
        RopePairs::Interleaved => {
            let pairs = heads.reshape((b, s, num_heads, half, 2))?;
            (pairs.narrow(D::Minus1, 0, 1)?.squeeze(D::Minus1)?, pairs.narrow(D::Minus1, 1, 1)?.squeeze(D::Minus1)?)
        }
    };
    let turned = [
        (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?,
        (first.broadcast_mul(&sin)? + second.broadcast_mul(&cos)?)?,
    ];
    let y = match pairs {
        RopePairs::Halves => Tensor::cat(&turned, D::Minus1)?,
        RopePairs::Interleaved => Tensor::stack(&turned, 4)?,
    };
    Ok(y.reshape((b, s, num_heads * head_dim))?.to_dtype(x.dtype())?)
}
