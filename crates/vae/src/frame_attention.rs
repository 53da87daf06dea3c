//! The attention of the autoencoder of Qwen-Image, whose projections of queries, keys and values are one.

use kiln_nn::ops;
use kiln_nn::{Linear, PixelNorm, Result, TensorLike};
use kiln_weights::ParamBuilder;

/// Attention between the pixels of a frame, with one head as wide as the feature map.
pub(crate) struct FrameAttention {
    norm: PixelNorm,
    to_qkv: Linear,
    proj: Linear,
}

impl FrameAttention {
    /// Declares `norm`, `to_qkv` and `proj`, two 1x1 convolutions.
    pub(crate) fn new(p: &ParamBuilder<'_>, channels: usize) -> Self {
        Self {
            norm: PixelNorm::new(&p.pp("norm"), channels),
            to_qkv: Linear::new(&p.pp("to_qkv"), channels, 3 * channels, true),
            proj: Linear::new(&p.pp("proj"), channels, channels, true),
        }
    }

    /// `x` `(b, h, w, c)`, same shape.
    pub(crate) fn forward<T: TensorLike>(&self, x: &T) -> Result<T> {
        let [b, h, w, c] = x.size4()?;
        let tokens = x.reshape(&[b, h * w, c])?;
        let qkv = self.to_qkv.forward(&self.norm.without_activation(&tokens)?)?; // (b, h w, 3 c)
        let [q, k, v] = [0, 1, 2].map(|i| {
            let part = qkv.narrow(2, i * c, c)?;
            if qkv.supports_strided_qkv() { Ok(part) } else { part.contiguous() }
        });
        let y = q?.attention(&k?, &v?, ops::Attention { num_heads: 1, causal: false })?;
        self.proj.forward_add(&y, Some(&tokens))?.reshape(&[b, h, w, c])
    }
}
