//! The configuration of the vision tower: `vision_config` in the `config.json` of Qwen2.5-VL.

use kiln_nn::limits;
use serde::Deserialize;

use super::NETWORK;
use crate::error::{Error, Result};

/// The activation of the feed-forward layers.
const SILU: &str = "silu";
/// Colors of an image.
const COLORS: usize = 3;
/// The largest side of a patch or a window in pixels, and the most frames of a patch.
const MAX_SIDE: usize = 1 << 10;
const MAX_FRAMES: usize = 16;
/// The largest side of a square of merged patches.
const MAX_MERGED: usize = 16;

/// The configuration of the vision tower of Qwen2.5-VL. Missing keys have the values of transformers' `Qwen2_5_VLVisionConfig`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VisionConfig {
    /// The number of layers.
    pub depth: usize,
    /// Channels of a patch.
    pub hidden_size: usize,
    /// Channels of the hidden layer of the feed-forward layers.
    pub intermediate_size: usize,
    /// The number of heads, which divides `hidden_size`.
    pub num_heads: usize,
    /// Channels of an image: 3.
    #[serde(alias = "in_chans")]
    pub in_channels: usize,
    /// Width and height of a patch in pixels.
    pub patch_size: usize,
    /// Frames of a patch. All of them have the same image.
    pub temporal_patch_size: usize,
    /// Width and height, in patches, of the square that becomes one token of the language model.
    pub spatial_merge_size: usize,
    /// Width and height of a window of the attention in pixels.
    pub window_size: usize,
    /// The numbers of the layers whose attention has no windows.
    pub fullatt_block_indexes: Vec<usize>,
    /// Channels of the result: those of the language model.
    pub out_hidden_size: usize,
    hidden_act: String,
}

impl Default for VisionConfig {
    fn default() -> Self {
        Self {
            depth: 32,
            hidden_size: 3584,
            intermediate_size: 3420,
            num_heads: 16,
            in_channels: COLORS,
            patch_size: 14,
            temporal_patch_size: 2,
            spatial_merge_size: 2,
            window_size: 112,
            fullatt_block_indexes: vec![7, 15, 23, 31],
            out_hidden_size: 3584,
            hidden_act: SILU.into(),
        }
    }
}

impl VisionConfig {
    /// Width and height, in pixels, of the square that becomes one token: sizes of images are multiples of it.
    pub fn token_side(&self) -> usize {
        self.patch_size * self.spatial_merge_size
    }

    /// The side of a window in tokens of the language model.
    pub(crate) fn window(&self) -> usize {
        (self.window_size / self.token_side().max(1)).max(1)
    }

    /// Numbers of a patch: its pixels in all colors and frames.
    pub(crate) fn patch_len(&self) -> usize {
        self.in_channels * self.temporal_patch_size * self.patch_size * self.patch_size
    }

    /// Channels of a head.
    pub(crate) fn head_dim(&self) -> usize {
        self.hidden_size / self.num_heads.max(1)
    }

    /// Returns an error if the network cannot be built for a language model of `width` channels.
    pub(crate) fn validate(&self, width: usize) -> Result<()> {
        let refuse =
            |key, found: String, expected: String| Err(Error::Config { network: NETWORK, key, found, expected });
        if self.hidden_act != SILU {
            return refuse("hidden_act", format!("`{}`", self.hidden_act), format!("`{SILU}`"));
        }
        for (key, value, least, most) in [
            ("depth", self.depth, 1, limits::MAX_TRANSFORMER_LAYERS),
            ("hidden_size", self.hidden_size, 1, limits::MAX_CHANNELS),
            ("intermediate_size", self.intermediate_size, 1, 1 << 18),
            ("num_heads", self.num_heads, 1, 1 << 12),
            ("in_channels", self.in_channels, COLORS, COLORS),
            ("patch_size", self.patch_size, 1, MAX_SIDE),
            ("temporal_patch_size", self.temporal_patch_size, 1, MAX_FRAMES),
            ("spatial_merge_size", self.spatial_merge_size, 1, MAX_MERGED),
            ("window_size", self.window_size, self.token_side(), MAX_SIDE * MAX_MERGED),
            ("out_hidden_size", self.out_hidden_size, width, width),
        ] {
            if !(least..=most).contains(&value) {
                return refuse(key, value.to_string(), limits::expected(&(least..=most)));
            }
        }
        if !self.hidden_size.is_multiple_of(4 * self.num_heads) {
            let expected = format!("a number whose quadruple divides `hidden_size`, {}", self.hidden_size);
            return refuse("num_heads", self.num_heads.to_string(), expected);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_are_named() {
        for (json, expected) in [
            (r#"{"depth": 0}"#, "the Qwen2.5-VL vision tower's configuration: `depth` is 0"),
            (r#"{"hidden_act": "gelu"}"#, "`hidden_act` is `gelu`, expected `silu`"),
            (r#"{"num_heads": 3}"#, "`num_heads` is 3, expected a number whose quadruple divides `hidden_size`, 3584"),
            (r#"{"in_chans": 4}"#, "`in_channels` is 4"),
            (r#"{"patch_size": 0}"#, "`patch_size` is 0"),
            (r#"{"window_size": 27}"#, "`window_size` is 27"),
            (r#"{"out_hidden_size": 12}"#, "`out_hidden_size` is 12"),
        ] {
            let config: VisionConfig = serde_json::from_str(json).unwrap();
            let message = config.validate(3584).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
        VisionConfig::default().validate(3584).unwrap();
    }
}
