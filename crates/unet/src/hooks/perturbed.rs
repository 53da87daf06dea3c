//! Perturbed attention guidance (Ahn et al., arXiv 2403.17377), as in diffusers' `PAGCFGIdentitySelfAttnProcessor2_0`.

use kiln_nn::{Attention, Result, TensorLike};

use super::selection::LayerSelection;
use super::{AttentionInput, SelfAttentionHook};

/// The last rows of the batch attend to nothing in some layers: each token gets its own value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerturbedAttention {
    /// The layers.
    pub layers: LayerSelection,
    /// Of how many parts of the batch how many are perturbed: the last ones. (1, 3) is the last third.
    pub part: (usize, usize),
}

impl PerturbedAttention {
    /// The perturbed ones of `b` rows.
    pub fn rows(&self, b: usize) -> usize {
        b * self.part.0 / self.part.1.max(1)
    }

    /// What of it is no tensor.
    pub(crate) fn constants(&self) -> impl Iterator<Item = u64> {
        [self.part.0 as u64, self.part.1 as u64].into_iter().chain(self.layers.constants())
    }
}

impl<T: TensorLike> SelfAttentionHook<T> for PerturbedAttention {
    fn forward(&self, attention: &Attention, input: &AttentionInput<'_, T>) -> Result<T> {
        let [b, ..] = input.x.size3()?;
        match self.layers.has(input.id) {
            true => attention.forward_identity(input.x, self.rows(b), input.residual),
            false => attention.forward(input.x, None, input.residual),
        }
    }
}
