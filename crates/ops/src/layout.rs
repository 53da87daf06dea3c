//! Between the outer layout `(b, c, h, w)` of latents and images and the channels-last layout of the networks.

use candle_core::Tensor;

use crate::error::Result;

/// `(b, c, h, w)` to `(b, h, w, c)`, contiguous.
pub fn to_channels_last(x: &Tensor) -> Result<Tensor> {
    Ok(x.permute((0, 2, 3, 1))?.contiguous()?)
}

/// `(b, h, w, c)` to `(b, c, h, w)`, contiguous.
pub fn to_channels_first(x: &Tensor) -> Result<Tensor> {
    Ok(x.permute((0, 3, 1, 2))?.contiguous()?)
}
