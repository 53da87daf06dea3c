//! The configuration of a transformer.

use kiln_network::{Denoiser, DenoiserConfig, TextWidths};

use super::NETWORK;
use super::raw_config::RawConfig;
use super::transformer::Sd3Transformer;
use crate::error::Result;

/// The configuration of an SD3 transformer, whose values have been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sd3Config {
    /// Channels of the input: the latents', and those that follow them.
    pub in_channels: usize,
    /// Channels of the latents and of the output.
    pub out_channels: usize,
    /// Height and width in latents of the square that is one token.
    pub patch_size: usize,
    /// Rows and columns of the table of positions, in tokens.
    pub pos_embed_max_size: usize,
    /// Joint blocks.
    pub num_layers: usize,
    /// Heads of attention.
    pub num_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Channels of a token of the text.
    pub context_dim: usize,
    /// Channels of the pooled text.
    pub pooled_dim: usize,
    /// Whether the heads of queries and keys are normalized.
    pub qk_norm: bool,
    /// The blocks with a second attention, of image tokens alone, in ascending order.
    pub dual_layers: Vec<usize>,
}

impl Sd3Config {
    /// Reads the `config.json` of diffusers' `SD3Transformer2DModel`. Keys that are missing have diffusers' defaults.
    ///
    /// # Errors
    /// [`crate::Error::Json`], and [`crate::Error::Config`] for values that are impossible or not supported.
    pub fn from_json(text: &str) -> Result<Self> {
        RawConfig::read(text, NETWORK)?.transformer(NETWORK)
    }

    /// Channels of a token inside the network.
    pub fn channels(&self) -> usize {
        self.num_heads * self.head_dim
    }

    /// Channels of the input that follow the latents'.
    pub fn extra_channels(&self) -> usize {
        self.in_channels.saturating_sub(self.out_channels)
    }
}

impl DenoiserConfig for Sd3Config {
    fn build(&self) -> Box<dyn Denoiser> {
        Box::new(Sd3Transformer::new(self.clone()))
    }

    fn text(&self) -> TextWidths {
        TextWidths { context: Some(self.context_dim), pooled: Some(self.pooled_dim) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: &str) -> String {
        Sd3Config::from_json(json).unwrap_err().to_string()
    }

    #[test]
    fn missing_keys_have_the_defaults_of_diffusers() {
        let config = Sd3Config::from_json("{}").unwrap();
        assert_eq!((config.channels(), config.num_layers, config.pos_embed_max_size), (1152, 18, 96));
        assert_eq!((config.extra_channels(), config.qk_norm, config.dual_layers.len()), (0, false, 0));
        assert_eq!(config.text(), TextWidths { context: Some(4096), pooled: Some(2048) });
    }

    #[test]
    fn lists_are_in_order() {
        let json = r#"{"dual_attention_layers": [2, 0, 2], "qk_norm": "rms_norm", "in_channels": 33}"#;
        let config = Sd3Config::from_json(json).unwrap();
        assert_eq!((config.dual_layers.as_slice(), config.qk_norm, config.extra_channels()), (&[0, 2][..], true, 17));
    }

    #[test]
    fn impossible_values_are_refused_with_their_key() {
        assert!(message("7").contains("cannot be read"));
        assert!(message(r#"{"num_layers": "a"}"#).contains("cannot be read"));
        for key in ["num_layers", "patch_size", "attention_head_dim", "num_attention_heads", "pos_embed_max_size"] {
            let message = message(&format!(r#"{{"{key}": 0}}"#));
            assert!(message.contains(&format!("`{key}` is 0, expected a number from 1")), "{message}");
        }
        for key in ["in_channels", "out_channels", "pooled_projection_dim", "joint_attention_dim"] {
            assert!(message(&format!(r#"{{"{key}": 99999}}"#)).contains(&format!("`{key}` is 99999")));
        }
        assert!(message(r#"{"joint_attention_dim": null}"#).contains("`joint_attention_dim` is null"));
        assert!(message(r#"{"num_attention_heads": 65536}"#).contains("`num_attention_heads`"));
        assert!(message(r#"{"caption_projection_dim": 64}"#).contains("`caption_projection_dim` is 64, expected 1152"));
        assert!(message(r#"{"qk_norm": "layer_norm"}"#).contains("`qk_norm` is layer_norm, expected null or rms_norm"));
        assert!(message(r#"{"dual_attention_layers": [18]}"#).contains("`dual_attention_layers` is 18"));
        assert!(message(r#"{"in_channels": 8}"#).contains("`in_channels` is 8"));
    }
}
