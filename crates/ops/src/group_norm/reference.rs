//! Group normalization in candle's primitives: of a whole map, and by moments `(num_groups, 2)`, the mean of each group
//! and its sum of squared differences.

use candle_core::{D, DType, Tensor};

use super::GroupNorm;
use crate::error::Result;

pub(super) fn forward(x: &Tensor, gamma: &Tensor, beta: &Tensor, config: GroupNorm) -> Result<Tensor> {
    let (b, c) = (x.dim(0)?, x.dim(D::Minus1)?);
    let pixels = x.elem_count() / (b * c).max(1);
    let grouped = x.to_dtype(DType::F32)?.reshape((b, pixels, config.num_groups, c / config.num_groups))?;
    let mean = grouped.mean_keepdim((1, 3))?; // (b, 1, num_groups, 1)
    let centered = grouped.broadcast_sub(&mean)?;
    let variance = centered.sqr()?.mean_keepdim((1, 3))?;
    let normal = centered.broadcast_div(&(variance + config.eps)?.sqrt()?)?.reshape(x.shape())?;
    let scaled = normal.broadcast_mul(&gamma.to_dtype(DType::F32)?)?.broadcast_add(&beta.to_dtype(DType::F32)?)?;
    let y = if config.silu { scaled.silu()? } else { scaled };
    Ok(y.to_dtype(x.dtype())?)
}

/// The moments of some pixels, `x` `(1, .., c)`, joined with those of the pixels in `before` (Chan, Golub and LeVeque,
/// "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances", 1979).
pub(super) fn moments(x: &Tensor, config: GroupNorm, before: Option<(&Tensor, usize)>) -> Result<Tensor> {
    let c = x.dim(D::Minus1)?;
    let (width, pixels) = (c / config.num_groups, x.elem_count() / c.max(1));
    let grouped = x.to_dtype(DType::F32)?.reshape((pixels, config.num_groups, width))?;
    let mean = grouped.mean_keepdim((0, 2))?; // (1, num_groups, 1)
    let squares = grouped.broadcast_sub(&mean)?.sqr()?.sum_keepdim((0, 2))?.reshape((config.num_groups, 1))?;
    let mean = mean.reshape((config.num_groups, 1))?;
    let Some((moments, count)) = before else { return Ok(Tensor::cat(&[mean, squares], 1)?) };
    let (old_mean, old_squares) = (moments.narrow(1, 0, 1)?, moments.narrow(1, 1, 1)?);
    let difference = (mean - &old_mean)?;
    let part = pixels as f64 / (pixels + count) as f64;
    let mean = (old_mean + (&difference * part)?)?;
    let between = (difference.sqr()? * (part * (count * width) as f64))?;
    Ok(Tensor::cat(&[mean, ((old_squares + squares)? + between)?], 1)?)
}

/// Normalizes `x` `(1, .., c)` by the moments of `pixels` pixels.
pub(super) fn apply(
    x: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    (moments, pixels): (&Tensor, usize),
    config: GroupNorm,
) -> Result<Tensor> {
    let c = x.dim(D::Minus1)?;
    let width = c / config.num_groups;
    let mean = moments.narrow(1, 0, 1)?.contiguous()?; // (num_groups, 1)
    let variance = (moments.narrow(1, 1, 1)?.contiguous()? / (pixels * width).max(1) as f64)?;
    let grouped = x.to_dtype(DType::F32)?.reshape((x.elem_count() / c.max(1), config.num_groups, width))?;
    let normal = grouped.broadcast_sub(&mean)?.broadcast_div(&(variance + config.eps)?.sqrt()?)?.reshape(x.shape())?;
    let scaled = normal.broadcast_mul(&gamma.to_dtype(DType::F32)?)?.broadcast_add(&beta.to_dtype(DType::F32)?)?;
    let y = if config.silu { scaled.silu()? } else { scaled };
    Ok(y.to_dtype(x.dtype())?)
}
