//! The configuration of Qwen-Image's transformer.

use kiln_network::{Denoiser, DenoiserConfig, TextWidths};
use kiln_nn::limits::{MAX_CHANNELS, MAX_TRANSFORMER_LAYERS};
use serde::Deserialize;

use super::NETWORK;
use super::transformer::QwenImageTransformer;
use crate::error::{Error, Result};
use crate::flux::FluxDims;
use crate::flux::dims::{Checks, PATCH, SQUARE};

/// The configuration of [`QwenImageTransformer`]: diffusers' `QwenImageTransformer2DModel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QwenImageConfig {
    /// The sizes. There are no single blocks.
    pub dims: FluxDims,
    /// Whether the tokens of references have the timestep 0: editing models of November 2025 and later.
    pub zero_cond_t: bool,
}

/// The keys that Kiln reads, with diffusers' defaults.
#[derive(Deserialize)]
#[serde(default)]
struct RawConfig {
    patch_size: usize,
    in_channels: usize,
    out_channels: Option<usize>,
    num_layers: usize,
    attention_head_dim: usize,
    num_attention_heads: usize,
    joint_attention_dim: usize,
    axes_dims_rope: Vec<usize>,
    guidance_embeds: bool,
    zero_cond_t: bool,
    use_additional_t_cond: bool,
    use_layer3d_rope: bool,
}

impl Default for RawConfig {
    fn default() -> Self {
        Self {
            patch_size: PATCH,
            in_channels: 64,
            out_channels: Some(16),
            num_layers: 60,
            attention_head_dim: 128,
            num_attention_heads: 24,
            joint_attention_dim: 3584,
            axes_dims_rope: vec![16, 56, 56],
            guidance_embeds: false,
            zero_cond_t: false,
            use_additional_t_cond: false,
            use_layer3d_rope: false,
        }
    }
}

impl QwenImageConfig {
    /// Reads diffusers' `config.json`. Missing keys have diffusers' defaults, which are those of Qwen-Image.
    ///
    /// # Errors
    /// [`crate::Error::Json`], and [`crate::Error::Config`] for values that are impossible, and for the networks of
    /// Qwen-Image-Layered.
    pub fn from_json(text: &str) -> Result<Self> {
        let checks = Checks(NETWORK);
        let raw: RawConfig = serde_json::from_str(text).map_err(|error| Error::Json { network: NETWORK, error })?;
        for (key, value) in [
            ("guidance_embeds", raw.guidance_embeds),
            ("use_additional_t_cond", raw.use_additional_t_cond),
            ("use_layer3d_rope", raw.use_layer3d_rope),
        ] {
            if value {
                return checks.refuse(key, true, "false: this variant is not supported");
            }
        }
        checks.range("patch_size", raw.patch_size, PATCH..=PATCH)?;
        checks.range("in_channels", raw.in_channels, SQUARE..=MAX_CHANNELS)?;
        let out_channels = raw.out_channels.unwrap_or(raw.in_channels);
        if out_channels.checked_mul(SQUARE) != Some(raw.in_channels) {
            let expected = format!("a quarter of `in_channels`, {}", raw.in_channels);
            return checks.refuse("out_channels", out_channels, expected);
        }
        checks.range("joint_attention_dim", raw.joint_attention_dim, 1..=MAX_CHANNELS)?;
        checks.range("num_layers", raw.num_layers, 1..=MAX_TRANSFORMER_LAYERS)?;
        let [num_heads, head_dim] = [raw.num_attention_heads, raw.attention_head_dim];
        let axes = checks.heads([num_heads, head_dim], &raw.axes_dims_rope)?;
        let dims = FluxDims {
            in_channels: raw.in_channels,
            out_channels: raw.in_channels,
            context_dim: raw.joint_attention_dim,
            num_heads,
            head_dim,
            axes,
            layers: raw.num_layers,
            single_layers: 0,
        };
        Ok(Self { dims, zero_cond_t: raw.zero_cond_t })
    }
}

impl DenoiserConfig for QwenImageConfig {
    fn build(&self) -> Box<dyn Denoiser> {
        Box::new(QwenImageTransformer::new(*self))
    }

    fn text(&self) -> TextWidths {
        TextWidths { context: Some(self.dims.context_dim), pooled: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_configuration_is_qwen_image() {
        let config = QwenImageConfig::from_json("{}").unwrap();
        assert_eq!((config.dims.channels(), config.dims.latent_channels()), (3072, 16));
        assert_eq!(config.build().segments().parameters(), 20_430_401_088);
        assert_eq!(config.text(), TextWidths { context: Some(3584), pooled: None });
    }

    #[test]
    fn errors_name_the_key() {
        for (json, expected) in [
            ("[", "the Qwen-Image transformer's configuration cannot be read"),
            (r#"{"patch_size": 1}"#, "`patch_size` is 1, expected"),
            (r#"{"in_channels": 0}"#, "`in_channels` is 0"),
            (r#"{"out_channels": 64}"#, "`out_channels` is 64, expected a quarter of `in_channels`, 64"),
            (r#"{"out_channels": 9223372036854775807}"#, "`out_channels` is 9223372036854775807"),
            (r#"{"num_layers": 0}"#, "`num_layers` is 0"),
            (r#"{"num_attention_heads": 1000}"#, "`num_attention_heads` is 1000"),
            (r#"{"axes_dims_rope": [15, 57, 56]}"#, "`axes_dims_rope` is [15, 57, 56]"),
            (r#"{"guidance_embeds": true}"#, "`guidance_embeds` is true, expected false"),
            (r#"{"use_additional_t_cond": true}"#, "`use_additional_t_cond` is true"),
            (r#"{"use_layer3d_rope": true}"#, "`use_layer3d_rope` is true"),
        ] {
            let message = QwenImageConfig::from_json(json).unwrap_err().to_string();
            assert!(message.contains(expected), "{json}: {message}");
        }
    }
}
