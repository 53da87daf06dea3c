//! Limits of the size of a network in a configuration. Every limit is several times the value of any real model. A
//! hostile or mistyped number in a file then results in an error instead of a network that takes all memory.

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

/// Whether `value` is a valid epsilon of a normalization: more than 0, at most 1.
pub fn is_epsilon(value: f64) -> bool {
    value > 0.0 && value <= 1.0
}

/// The description of `range` for messages.
pub fn expected(range: &RangeInclusive<usize>) -> String {
    format!("a number from {} to {}", range.start(), range.end())
}
