//! Perturbed attention guidance (Ahn et al., arXiv 2403.17377), as in diffusers' `PAGCFGIdentitySelfAttnProcessor2_0`.

use kiln_nn::{Attention, Result, TensorLike};

use super::selection::LayerSelection;
use super::{AttentionInput, SelfAttentionHook};

/// The last rows of the batch attend to nothing in some layers: each token gets its own value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerturbedAttention {
    /// The layers.
    pub layers: LayerSelection,
    /// How many rows of the batch are perturbed: the last ones.
    pub rows: usize,
}

impl<T: TensorLike> SelfAttentionHook<T> for PerturbedAttention {
    fn forward(&self, attention: &Attention, input: &AttentionInput<'_, T>) -> Result<T> {
        let [b, ..] = input.x.size3()?;
        match self.layers.has(input.id) {
            true => attention.forward_identity(input.x, self.rows.min(b), input.residual),
            false => attention.forward(input.x, None, input.residual),
        }
    }
}
