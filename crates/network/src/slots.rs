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
/// The latents of a reference image, `(b, c, h', w')`, of any size that the network can divide into tokens: its tokens join those
/// of the image. Scaled as the latents are. Input `k` is the image's number `k`. If all rows have one reference, it is added as a
/// slot with [`crate::Rows::Shared`] and one row.
pub const REFERENCE: Slot = Slot::each("reference latents");
/// The number of tokens of each row's text that are not masked, `(b)` in f32: the first ones.
pub const TEXT_LENGTHS: Slot = Slot::each("text lengths").keeping_dtype();
/// Channels besides the latents, `(b, e, h, w)`. They are not scaled as the latents are.
pub const EXTRA_CHANNELS: Slot = Slot::each("extra_channels");

/// The attention that each token of a layer gets from all tokens, `(b, tokens)` in f32, which the call writes.
pub const ATTENTION_MAP: Slot = Slot::each("attention map").keeping_dtype().output();

/// A feature map that a call stores for later calls, or uses in place of a part of the network.
pub const CACHED_FEATURE: Slot = Slot::each("cached feature");

/// The number of the last rows with perturbed attention ([`crate::Inputs::with_rows`]).
pub const PERTURBED: &str = "perturbed";

/// The vectors of the positions of an image's tokens, `(tokens, channels)`, which depend on the size of the latents alone
/// ([`crate::Forward::for_size`]).
pub const POSITIONS: Slot = Slot::shared("positions");

/// The blocks of a transformer that some rows skip, a bit for each of the first 64 ([`crate::Inputs::with_constant`]), and the number
/// of these rows, which are the last ones of the batch ([`crate::Inputs::with_rows`]).
pub const SKIPPED_LAYERS: &str = "skipped layers";
