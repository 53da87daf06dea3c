//! Modulation by vectors of the timestep (adaLN; Peebles and Xie, arXiv 2212.09748).

use kiln_ops::{Activation, RowNorm};
use kiln_weights::ParamBuilder;

use crate::error::Result;
use crate::linear::Linear;
use crate::tensor::TensorLike;

/// The vectors that modulate a block: shifts, scales and gates, all from one linear layer of the timestep's embedding.
pub struct Modulation {
    linear: Linear,
    chunks: usize,
    silu: bool,
}

impl Modulation {
    /// Declares the `weight` and, if requested, the `bias` of a linear layer from `in_channels` to `chunks` vectors of
    /// `channels`. `silu` precedes it in all families but Z-Image.
    pub fn new(
        p: &ParamBuilder<'_>,
        [in_channels, channels]: [usize; 2],
        chunks: usize,
        bias: bool,
        silu: bool,
    ) -> Self {
        Self { linear: Linear::new(p, in_channels, chunks * channels, bias), chunks, silu }
    }

    /// `emb` `(b, in_channels)` to the vectors `(b, channels)` in their order, as views.
    pub fn forward<T: TensorLike>(&self, emb: &T) -> Result<Vec<T>> {
        let all = if self.silu {
            self.linear.forward(&emb.activation(Activation::Silu)?)?
        } else {
            self.linear.forward(emb)?
        };
        let c = all.size2()?[1] / self.chunks.max(1);
        (0..self.chunks).map(|i| all.narrow(1, i * c, c)).collect()
    }
}

/// Layer normalization of `x` `(b, s, c)` without weights, modulated by `scale` and `shift` `(b, c)`:
/// `norm(x) (1 + scale) + shift`.
pub fn modulate<T: TensorLike>(x: &T, scale: &T, shift: Option<&T>, eps: f64) -> Result<T> {
    x.modulated_norm(RowNorm::Layer, [None, Some(scale), shift], eps)
}
