//! How large a network may be that a configuration describes. Every limit is several times what any real model has; it
//! exists so that a number in a stranger's file, or one that was mistyped, ends in an error rather than in a network that
//! takes all memory.

use std::ops::RangeInclusive;

/// Levels of a U-Net or an autoencoder, each with maps of half the size. Stable Diffusion has 4.
pub const MAX_LEVELS: usize = 8;
/// Residual blocks of a level. Stable Diffusion has 2.
pub const MAX_LAYERS: usize = 64;
/// Layers of all transformers of a U-Net. Stable Diffusion XL has 70.
pub const MAX_TRANSFORMER_LAYERS: usize = 1024;
/// Channels of a feature map, a token or an embedding. The largest in use is 4,096 or so.
pub const MAX_CHANNELS: usize = 1 << 16;
/// Height and width of a convolution's kernel, and its padding.
pub const MAX_KERNEL: usize = 31;

/// Whether `value` can be what a normalisation adds to a variance: more than 0, at most 1.
pub fn is_epsilon(value: f64) -> bool {
    value > 0.0 && value <= 1.0
}

/// The words for a number outside of `range`.
pub fn expected(range: &RangeInclusive<usize>) -> String {
    format!("a number from {} to {}", range.start(), range.end())
}
