//! The configuration of a T5 text encoder: `config.json` of transformers.

use kiln_network::text::EncoderConfig;
use kiln_nn::limits;
use serde::Deserialize;

use crate::error::{Error, Result};

/// The name of the network in messages.
pub(crate) const NETWORK: &str = "T5 text encoder";
/// The `model_type` in a text encoder's file.
const MODEL_TYPE: &str = "t5";
/// The feed-forward layer of version 1.1: gates with the approximate GELU.
const GATED_GELU: &str = "gated-gelu";

/// The configuration of a T5 text encoder. Missing keys have the values of transformers' `T5Config`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct T5Config {
    /// Rows of the token table.
    pub vocab_size: usize,
    /// Channels of the tokens.
    pub d_model: usize,
    /// Channels of each head. All heads together need not have `d_model`.
    pub d_kv: usize,
    /// Channels of the hidden layer of the feed-forward layers.
    pub d_ff: usize,
    /// The number of blocks.
    pub num_layers: usize,
    /// The number of heads.
    pub num_heads: usize,
    /// Buckets of relative positions, for both directions together.
    pub relative_attention_num_buckets: usize,
    /// The distance from which on all positions are in the last bucket of their direction.
    pub relative_attention_max_distance: usize,
    /// The kind of the feed-forward layers.
    pub feed_forward_proj: String,
    /// The epsilon of the normalizations.
    pub layer_norm_epsilon: f64,
    /// The kind of network.
    pub model_type: String,
}

impl Default for T5Config {
    fn default() -> Self {
        Self {
            vocab_size: 32128,
            d_model: 512,
            d_kv: 64,
            d_ff: 2048,
            num_layers: 6,
            num_heads: 8,
            relative_attention_num_buckets: 32,
            relative_attention_max_distance: 128,
            feed_forward_proj: "relu".into(),
            layer_norm_epsilon: 1e-6,
            model_type: MODEL_TYPE.into(),
        }
    }
}

impl T5Config {
    /// The encoder of T5 v1.1 XXL, which Stable Diffusion 3 and FLUX.1 have.
    pub fn xxl() -> Self {
        Self {
            d_model: 4096,
            d_ff: 10240,
            num_layers: 24,
            num_heads: 64,
            feed_forward_proj: GATED_GELU.into(),
            ..Self::default()
        }
    }

    /// Reads and checks the text of a `config.json`.
    ///
    /// # Errors
    /// [`Error::Json`] if it is not JSON of this form, and [`Error::Config`] with the key, its value and the possible ones.
    pub fn from_json(text: &str) -> Result<Self> {
        let config: Self = serde_json::from_str(text).map_err(|error| Error::Json { network: NETWORK, error })?;
        config.validate()?;
        Ok(config)
    }

    /// Channels of the queries, keys and values of all heads.
    pub fn inner(&self) -> usize {
        self.num_heads * self.d_kv
    }

    /// Returns an error if the network cannot be built. The upper bounds are far above every real encoder and keep sizes in
    /// bytes from overflowing.
    pub(crate) fn validate(&self) -> Result<()> {
        let refuse =
            |key, found: String, expected: String| Err(Error::Config { network: NETWORK, key, found, expected });
        for (key, found, expected) in
            [("model_type", &self.model_type, MODEL_TYPE), ("feed_forward_proj", &self.feed_forward_proj, GATED_GELU)]
        {
            if found != expected {
                return refuse(key, format!("`{found}`"), format!("`{expected}`"));
            }
        }
        for (key, value, least, most) in [
            ("vocab_size", self.vocab_size, 3, 1 << 24),
            ("d_model", self.d_model, 1, limits::MAX_CHANNELS),
            ("d_kv", self.d_kv, 1, 1 << 12),
            ("d_ff", self.d_ff, 1, 1 << 18),
            ("num_layers", self.num_layers, 1, 1 << 10),
            ("num_heads", self.num_heads, 1, 1 << 12),
            ("relative_attention_num_buckets", self.relative_attention_num_buckets, 4, 1 << 12),
            ("relative_attention_max_distance", self.relative_attention_max_distance, 2, 1 << 20),
        ] {
            if !(least..=most).contains(&value) {
                return refuse(key, value.to_string(), limits::expected(&(least..=most)));
            }
        }
        let (buckets, distance) = (self.relative_attention_num_buckets, self.relative_attention_max_distance);
        if distance <= buckets / 4 {
            let expected = format!("more than {}: a quarter of the buckets", buckets / 4);
            return refuse("relative_attention_max_distance", distance.to_string(), expected);
        }
        if !limits::is_epsilon(self.layer_norm_epsilon) {
            let found = format!("{:?}", self.layer_norm_epsilon);
            return refuse("layer_norm_epsilon", found, "more than 0 and at most 1".into());
        }
        Ok(())
    }
}

impl EncoderConfig for T5Config {
    fn width(&self) -> usize {
        self.d_model
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_and_others_have_transformers_values() {
        let json =
            r#"{"feed_forward_proj": "gated-gelu", "d_model": 96, "num_heads": 4, "d_kv": 16, "is_decoder": false}"#;
        let config = T5Config::from_json(json).unwrap();
        assert_eq!((config.d_model, config.inner(), config.num_layers), (96, 64, 6));
        T5Config::xxl().validate().unwrap();
    }

    #[test]
    fn impossible_values_are_named() {
        for (json, expected) in [
            ("{", "the T5 text encoder's configuration cannot be read"),
            ("{}", "`feed_forward_proj` is `relu`, expected `gated-gelu`"),
            (r#"{"model_type": "umt5"}"#, "`model_type` is `umt5`, expected `t5`"),
            (r#"{"feed_forward_proj": "gated-gelu", "num_heads": 0}"#, "`num_heads` is 0, expected a number from 1"),
            (r#"{"feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 0}"#, "`layer_norm_epsilon` is 0.0"),
            (
                r#"{"feed_forward_proj": "gated-gelu", "relative_attention_max_distance": 8}"#,
                "`relative_attention_max_distance` is 8, expected more than 8",
            ),
        ] {
            let message = T5Config::from_json(json).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
