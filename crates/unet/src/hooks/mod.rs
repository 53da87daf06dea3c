//! Places at which a part of its own changes what the network computes.
//!
//! Each place has a trait, and [`Hooks`] has at most one part for each. A U-Net makes its hooks from the [`Conditioning`] of
//! the batch, so that what a part needs is joined, copied and recorded with the other inputs. A network without hooks
//! computes what its blocks say.
//!
//! [`Conditioning`]: crate::Conditioning
//!
//! `pipeline/network_parts.rs` of the engine decides for a group what acts at an evaluation. DeepCache's stored feature
//! belongs to the group; its shortcut is a recorded step of its own.

mod attention_map;
mod deep_shrink;
mod feature_cache;
mod freeu;
mod inputs;
mod low_frequencies;
mod perturbed;
mod selection;

use std::fmt;

use kiln_nn::{Attention, Result, TensorLike};

pub use attention_map::AttentionMap;
pub use deep_shrink::DeepShrink;
pub use feature_cache::FeatureCache;
pub(crate) use feature_cache::{StoreFeature, UpLayer};
pub(crate) use freeu::FreeuHook;
pub use freeu::{FreeU, FreeuRule};
pub use inputs::HookInputs;
pub use perturbed::PerturbedAttention;
pub use selection::LayerSelection;

/// A block of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum BlockId {
    /// `down_blocks.{0}`.
    Down(usize),
    /// `mid_block`.
    Mid,
    /// `up_blocks.{0}`.
    Up(usize),
}

impl fmt::Display for BlockId {
    /// As in the names of parameters.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Down(index) => write!(f, "down_blocks.{index}"),
            Self::Mid => f.write_str("mid_block"),
            Self::Up(index) => write!(f, "up_blocks.{index}"),
        }
    }
}

/// A layer of a transformer: `{block}.attentions.{transformer}.transformer_blocks.{layer}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LayerId {
    /// The block.
    pub block: BlockId,
    /// The number of the transformer in its block.
    pub transformer: usize,
    /// The number of the layer in its transformer.
    pub layer: usize,
}

/// What an attention layer gets.
pub(crate) struct AttentionInput<'a, T> {
    /// The layer that runs.
    pub(crate) id: LayerId,
    /// Height and width of the feature map whose pixels are the tokens.
    #[allow(dead_code, reason = "parts that depend on the place of a pixel read it")]
    pub(crate) size: (usize, usize),
    /// The normalized tokens, `(b, h*w, c)`.
    pub(crate) x: &'a T,
    /// What is added to the output, `(b, h*w, c)`.
    pub(crate) residual: &'a T,
}

/// Replaces the self-attention of transformer layers.
pub(crate) trait SelfAttentionHook<T: TensorLike> {
    /// The output, `(b, h*w, c)`, with the residual.
    fn forward(&self, attention: &Attention, input: &AttentionInput<'_, T>) -> Result<T>;
}

/// Replaces the cross-attention of transformer layers.
pub(crate) trait CrossAttentionHook<T: TensorLike> {
    /// The output, `(b, h*w, c)`, with the residual. `context` `(b, s, context_dim)` is the text.
    fn forward(&self, attention: &Attention, input: &AttentionInput<'_, T>, context: &T) -> Result<T>;
}

/// Changes what the layers of the up blocks concatenate.
pub(crate) trait SkipHook<T: TensorLike> {
    /// The feature map `x` `(b, h, w, c)` and the skip connection `skip` `(b, h', w', c')` before layer `layer` of up block
    /// `block`, in one size.
    fn join(&self, block: usize, layer: usize, x: T, skip: T) -> Result<(T, T)>;
}

/// Several parts, one after the other.
pub(crate) struct SkipHooks<'a, T>(pub(crate) Vec<&'a dyn SkipHook<T>>);

impl<T: TensorLike> SkipHook<T> for SkipHooks<'_, T> {
    fn join(&self, block: usize, layer: usize, x: T, skip: T) -> Result<(T, T)> {
        self.0.iter().try_fold((x, skip), |(x, skip), hook| hook.join(block, layer, x, skip))
    }
}

/// Changes feature maps on the way down.
pub(crate) trait DownHook<T: TensorLike> {
    /// The output `x` `(b, h, w, c)` of the step of number `step` on the way down, which the next one takes. The skip
    /// connection keeps the map as it was. The first convolution is step 0; each layer and each downsampling is one more.
    fn after(&self, step: usize, x: T) -> Result<T>;
}

/// Changes what the projections of attention layers get.
pub(crate) trait ProjectionHook<T: TensorLike> {
    /// Self-attention, `(b, h*w, c)`, with the residual.
    fn self_attention(&self, attention: &Attention, input: &AttentionInput<'_, T>) -> Result<T>;

    /// The tokens of which a layer of cross-attention makes its queries; `None` where they stay.
    fn text_query(&self, input: &AttentionInput<'_, T>) -> Result<Option<T>>;
}

/// The parts that change the network, one for each place.
pub(crate) struct Hooks<'a, T> {
    pub(crate) self_attention: Option<&'a dyn SelfAttentionHook<T>>,
    pub(crate) cross_attention: Option<&'a dyn CrossAttentionHook<T>>,
    pub(crate) skips: Option<&'a dyn SkipHook<T>>,
    pub(crate) down: Option<&'a dyn DownHook<T>>,
    pub(crate) projections: Option<&'a dyn ProjectionHook<T>>,
}

impl<T> Default for Hooks<'_, T> {
    fn default() -> Self {
        Self { self_attention: None, cross_attention: None, skips: None, down: None, projections: None }
    }
}

impl<T: TensorLike> Hooks<'_, T> {
    /// The self-attention of a layer.
    pub(crate) fn self_attention(&self, attention: &Attention, input: &AttentionInput<'_, T>) -> Result<T> {
        match (self.self_attention, self.projections) {
            (Some(hook), _) => hook.forward(attention, input),
            (None, Some(hook)) => hook.self_attention(attention, input),
            (None, None) => attention.forward(input.x, None, input.residual),
        }
    }

    /// The cross-attention of a layer to `context` `(b, s, context_dim)`.
    pub(crate) fn cross_attention(
        &self,
        attention: &Attention,
        input: &AttentionInput<'_, T>,
        context: &T,
    ) -> Result<T> {
        let changed = self.projections.map(|hook| hook.text_query(input)).transpose()?.flatten();
        let input = &AttentionInput { x: changed.as_ref().unwrap_or(input.x), ..*input };
        match self.cross_attention {
            Some(hook) => hook.forward(attention, input, context),
            None => attention.forward(input.x, Some(context), input.residual),
        }
    }

    /// The input of layer `layer` of up block `block`: the feature map with its skip connection, `(b, h, w, c + c')`.
    pub(crate) fn join(&self, block: usize, layer: usize, x: T, skip: T) -> Result<T> {
        let (x, skip) = match self.skips {
            Some(hook) => hook.join(block, layer, x, skip)?,
            None => (x, skip),
        };
        x.concat_channels(&skip)
    }

    /// The output `x` of step `step` on the way down, as the next one takes it.
    pub(crate) fn after_down(&self, step: usize, x: T) -> Result<T> {
        match self.down {
            Some(hook) => hook.after(step, x),
            None => Ok(x),
        }
    }
}
