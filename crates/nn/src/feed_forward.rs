//! The feed-forward layer of the U-Net's transformer blocks.

use candle_core::Tensor;
use kiln_weights::ParamBuilder;

use crate::error::Result;
use crate::linear::Linear;
use crate::shadow::{self, Shadow};

/// How much wider the hidden layer is.
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
            proj: Linear::new(&p.pp("net.0.proj"), channels, 2 * hidden, true),
            out: Linear::new(&p.pp("net.2"), hidden, channels, true),
        }
    }

    /// `x` `(.., channels)`, `residual` of the same shape added to the result. The input is taken, and the values and
    /// gates go before the result is there: they are the largest map of a network with transformers.
    pub fn forward(&self, x: Tensor, residual: &Tensor) -> Result<Tensor> {
        let wide = self.proj.forward(&x)?;
        drop(x);
        let hidden = kiln_ops::geglu(&wide, None)?;
        drop(wide);
        self.out.forward_add(&hidden, Some(residual))
    }

    /// [`FeedForward::forward`] for shapes.
    pub fn shadow(&self, x: Shadow) -> Shadow {
        let wide = self.proj.shadow(&x);
        drop(x);
        let hidden = shadow::geglu(&wide);
        drop(wide);
        self.out.shadow(&hidden)
    }
}
