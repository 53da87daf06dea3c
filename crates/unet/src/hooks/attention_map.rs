//! Where the network attends to, for self-attention guidance.

use candle_core::Tensor;
use kiln_nn::{Attention, Result, TensorLike};

use super::{AttentionInput, BlockId, LayerId, SelfAttentionHook};

/// The attention that each token of the middle block's first layer gets from all tokens: the mean over the heads.
#[derive(Debug, Clone)]
pub struct AttentionMap<T = Tensor> {
    /// `(b, tokens)` in f32. Every call overwrites it.
    pub map: T,
}

/// The layer that is looked at.
const LAYER: LayerId = LayerId { block: BlockId::Mid, transformer: 0, layer: 0 };

impl<T: TensorLike> SelfAttentionHook<T> for AttentionMap<T> {
    fn forward(&self, attention: &Attention, input: &AttentionInput<'_, T>) -> Result<T> {
        if input.id == LAYER {
            self.map.slice_set(&attention.received(input.x)?, 0, 0)?;
        }
        attention.forward(input.x, None, input.residual)
    }
}
