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

/// The first-block cache of a transformer: its threshold as the bits of an f64 ([`crate::Inputs::with_constant`]), and the number of
/// images ([`crate::Inputs::with_rows`]). Row `r` of the batch belongs to image `r` modulo that number. A call with it reads a
/// decision back from the device, so that it cannot be recorded.
pub const BLOCK_CACHE: &str = "block cache";
/// The sum that the first block has added to the tokens of each row's image, `(b, h, w, c)`, at the last evaluation at which all
/// blocks ran for the row. Zeros before the first one.
pub const FIRST_RESIDUAL: Slot = Slot::each("residual of the first block").output();
/// The sum that the other blocks have added to them.
pub const OTHER_RESIDUAL: Slot = Slot::each("residual of the other blocks").output();
/// For each row the number of evaluations at which the other blocks did not run, `(b)` in f32.
pub const SKIPPED_EVALUATIONS: Slot = Slot::each("skipped evaluations").keeping_dtype().output();
/// How much [`OTHER_RESIDUAL`] had changed when it was stored, in its shape. An input of calls that predict it on a straight line.
pub const RESIDUAL_CHANGE: Slot = Slot::each("change of the residual").output();
/// The timesteps of the last two evaluations at which all blocks ran for each row, the later one first: `(b, 2)` in f32. Zeros
/// before the first one. An input with [`RESIDUAL_CHANGE`].
pub const RESIDUAL_TIMES: Slot = Slot::each("timesteps of the residual").keeping_dtype().output();
