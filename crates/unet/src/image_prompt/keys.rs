//! Keys and values of cross-attention layers that are there before a step begins: those of image prompts, and those of the
//! text, which stay the same from step to step.

use candle_core::Tensor;
use kiln_nn::{Attention, TensorLike};

use crate::hooks::{AttentionInput, CrossAttentionHook, LayerId};

/// Keys and values of a cross-attention layer.
#[derive(Debug, Clone)]
pub struct KeysValues<T = Tensor> {
    /// `(b, t, c)` for `t` tokens and the layer's channels.
    pub keys: T,
    /// The same shape.
    pub values: T,
}

/// An image prompt for the rows of a batch.
#[derive(Debug, Clone)]
pub struct ImagePrompt<T = Tensor> {
    /// For each cross-attention layer, in the order in which they run; `None` where the prompt does not act. Values are
    /// already weighed.
    pub layers: Vec<Option<KeysValues<T>>>,
    /// How strongly it acts on each pixel: `(b, h*w, c)` for every size and number of channels of a layer, each value
    /// repeated for all channels. Empty where it acts on all pixels alike.
    pub masks: Vec<T>,
}

impl<T: TensorLike> ImagePrompt<T> {
    /// The mask for a layer of `s` pixels and `c` channels.
    fn mask(&self, s: usize, c: usize) -> kiln_nn::Result<Option<&T>> {
        if self.masks.is_empty() {
            return Ok(None);
        }
        let fits = |mask: &&T| matches!(*mask.dims(), [_, pixels, channels] if [pixels, channels] == [s, c]);
        let missing = || kiln_nn::ops::Error::Shape {
            op: "image prompt",
            operand: "masks",
            expected: format!("one of (b, {s}, {c})"),
            found: self.masks.iter().flat_map(|mask| mask.dims().to_vec()).collect(),
        };
        self.masks.iter().find(fits).map(Some).ok_or_else(|| missing().into())
    }
}

/// The cross-attention of layers whose keys and values are there, those of the text, or of image prompts, or both.
pub(crate) struct CrossKeys<'a, T> {
    /// All cross-attention layers, in the order in which they run.
    pub(crate) layers: &'a [LayerId],
    /// The text's keys and values for each of them; empty where a layer makes them of the text.
    pub(crate) text: &'a [KeysValues<T>],
    pub(crate) prompts: &'a [ImagePrompt<T>],
}

impl<T> CrossKeys<'_, T> {
    /// Whether a layer computes anything else than without it.
    pub(crate) fn acts(&self) -> bool {
        !self.text.is_empty() || !self.prompts.is_empty()
    }
}

impl<T: TensorLike> CrossAttentionHook<T> for CrossKeys<'_, T> {
    /// `attention(q, k, v) + sum_i attention(q, k_i, v_i) mask_i` (`IPAdapterAttnProcessor2_0` of diffusers), projected.
    fn forward(&self, attention: &Attention, input: &AttentionInput<'_, T>, context: &T) -> kiln_nn::Result<T> {
        let index = self.layers.binary_search(&input.id).ok();
        let made;
        let text = match index.and_then(|i| self.text.get(i)) {
            Some(KeysValues { keys, values }) => [keys, values],
            None => {
                made = attention.keys_values(context)?;
                [&made[0], &made[1]]
            }
        };
        let add = |q: &T, mut y: T| {
            let ([_, _, c], (h, w)) = (q.size3()?, input.size);
            for prompt in self.prompts {
                let layer = index.and_then(|i| prompt.layers.get(i)).and_then(Option::as_ref);
                let Some(KeysValues { keys, values }) = layer else { continue };
                let mut image = q.attention(keys, values, attention.heads())?;
                if let Some(mask) = prompt.mask(h * w, c)? {
                    image = image.mul(mask)?;
                }
                y = y.add(&image)?;
            }
            Ok(y)
        };
        attention.forward_keyed(input.x, text, add, input.residual)
    }
}
