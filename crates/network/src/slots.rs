//! The inputs that networks of several families take.

use crate::slot::Slot;

/// The tokens of the text, `(b, s, context_dim)`.
pub const CONTEXT: Slot = Slot::each("context");
/// The pooled text, `(b, pooled_dim)`.
pub const TEXT_EMBEDS: Slot = Slot::each("text_embeds");
/// Numbers of each image besides its text, `(b, k)` in f32: sizes in pixels, or an aesthetic score.
pub const TIME_IDS: Slot = Slot::each("time_ids").keeping_dtype();
/// The guidance scale that a distilled network takes, `(1)` in f32 and in the network's own unit.
pub const GUIDANCE: Slot = Slot::shared("guidance").keeping_dtype();
/// Channels besides the latents, `(b, e, h, w)`. They are not scaled as the latents are.
pub const EXTRA_CHANNELS: Slot = Slot::each("extra_channels");

/// The attention that each token of a layer gets from all tokens, `(b, tokens)` in f32, which the call writes.
pub const ATTENTION_MAP: Slot = Slot::each("attention map").keeping_dtype().output();

/// A feature map that a call stores for later calls, or uses in place of a part of the network.
pub const CACHED_FEATURE: Slot = Slot::each("cached feature");

/// The number of the last rows with perturbed attention ([`crate::Inputs::with_rows`]).
pub const PERTURBED: &str = "perturbed";

/// Blocks that the last rows of the batch skip: a constant ([`crate::Inputs::constant`]) in which bit `i` is set for block `i`, and
/// the number of these rows ([`crate::Inputs::rows_of`]), which may be 0. Results of skipped blocks are their inputs.
pub const SKIPPED_BLOCKS: &str = "skipped blocks";
