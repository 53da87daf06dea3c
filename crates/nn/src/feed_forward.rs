//! The feed-forward layer of the U-Net's transformer blocks.

use kiln_weights::ParamBuilder;

use crate::error::Result;
use crate::linear::Linear;
use crate::norm::LayerNorm;
use crate::tensor::TensorLike;

/// The width of the hidden layer, relative to the input.
const EXPANSION: usize = 4;

/// A linear layer to values and gates, GEGLU, a linear layer back.
pub struct FeedForward {
    proj: Linear,
    out: Linear,
}

impl FeedForward {
    /// Declares `net.0.proj` and `net.2`.
    pub fn new(p: &ParamBuilder<'_>, channels: usize) -> Self {
        let hidden = EXPANSION * channels;
        Self {
            proj: Linear::new(&p.pp("net.0.proj").allows_8_bits(), channels, 2 * hidden, true),
            out: Linear::new(&p.pp("net.2").allows_8_bits(), hidden, channels, true),
        }
    }

    /// `norm` of `x` `(.., channels)`, with `x` added to the output. The values and gates are dropped before the output is
    /// computed, because they are the largest map of a network with transformers.
    pub fn forward<T: TensorLike>(&self, norm: &LayerNorm, x: &T) -> Result<T> {
        if let Some(hidden) = self.proj.forward_normed_geglu(x, norm)? {
            return self.out.forward_add(&hidden, Some(x));
        }
        let wide = self.proj.forward_normed(x, norm)?;
        self.out.forward_geglu(wide, Some(x))
    }
}
