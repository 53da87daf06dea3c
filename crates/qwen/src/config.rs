//! The configuration of a Qwen3 language model: `config.json` of transformers.

use kiln_network::text::EncoderConfig;
use kiln_nn::limits;
use serde::Deserialize;

use crate::error::{Error, Result};

/// The name of the network in messages.
pub(crate) const NETWORK: &str = "Qwen3 text encoder";
/// The `model_type` in a text encoder's file.
const MODEL_TYPE: &str = "qwen3";
/// The activation of the feed-forward layers.
const SILU: &str = "silu";
/// The kind of rotary positions without any scaling.
const PLAIN_ROPE: &str = "default";
/// The base of the rotary frequencies if a configuration has none, as in transformers.
const THETA: f64 = 10_000.0;

/// The configuration of a Qwen3 language model. Missing keys have the values of transformers' `Qwen3Config`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct QwenConfig {
    /// Rows of the token table.
    pub vocab_size: usize,
    /// Channels of the tokens.
    pub hidden_size: usize,
    /// Channels of the hidden layer of the feed-forward layers.
    pub intermediate_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// Heads of queries.
    pub num_attention_heads: usize,
    /// Heads of keys and values, each of which serves as many heads of queries.
    pub num_key_value_heads: usize,
    /// Channels of each head. All heads together need not have `hidden_size`.
    pub head_dim: usize,
    /// The epsilon of the normalizations.
    pub rms_norm_eps: f64,
    /// The kind of network.
    pub model_type: String,
    hidden_act: String,
    attention_bias: bool,
    rope_theta: Option<f64>,
    rope_parameters: Option<RopeParameters>,
    rope_scaling: Option<RopeParameters>,
}

/// The rotary positions, in transformers 5.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(default)]
struct RopeParameters {
    rope_theta: Option<f64>,
    rope_type: Option<String>,
}

impl Default for QwenConfig {
    fn default() -> Self {
        Self {
            vocab_size: 151_936,
            hidden_size: 4096,
            intermediate_size: 22_016,
            num_hidden_layers: 32,
            num_attention_heads: 32,
            num_key_value_heads: 32,
            head_dim: 128,
            rms_norm_eps: 1e-6,
            model_type: MODEL_TYPE.into(),
            hidden_act: SILU.into(),
            attention_bias: false,
            rope_theta: None,
            rope_parameters: None,
            rope_scaling: None,
        }
    }
}

impl QwenConfig {
    /// Qwen3 4B, which Z-Image and FLUX.2 klein 4B have.
    pub fn of_4b() -> Self {
        Self {
            hidden_size: 2560,
            intermediate_size: 9728,
            num_hidden_layers: 36,
            num_key_value_heads: 8,
            rope_theta: Some(1e6),
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

    /// The base of the rotary frequencies.
    pub fn theta(&self) -> f64 {
        let parameters = self.rope_parameters.as_ref().and_then(|parameters| parameters.rope_theta);
        parameters.or(self.rope_theta).unwrap_or(THETA)
    }

    /// Returns an error if the network cannot be built. The upper bounds are far above every real model and keep sizes in bytes
    /// from overflowing.
    pub(crate) fn validate(&self) -> Result<()> {
        let refuse =
            |key, found: String, expected: String| Err(Error::Config { network: NETWORK, key, found, expected });
        for (key, found, expected) in
            [("model_type", &self.model_type, MODEL_TYPE), ("hidden_act", &self.hidden_act, SILU)]
        {
            if found != expected {
                return refuse(key, format!("`{found}`"), format!("`{expected}`"));
            }
        }
        if self.attention_bias {
            return refuse("attention_bias", "true".into(), "false".into());
        }
        for (key, parameters) in [("rope_parameters", &self.rope_parameters), ("rope_scaling", &self.rope_scaling)] {
            let kind = parameters.as_ref().and_then(|parameters| parameters.rope_type.as_deref());
            if let Some(other) = kind.filter(|kind| *kind != PLAIN_ROPE) {
                return refuse(key, format!("of the type `{other}`"), format!("of the type `{PLAIN_ROPE}`"));
            }
        }
        for (key, value, least, most) in [
            ("vocab_size", self.vocab_size, 1, 1 << 24),
            ("hidden_size", self.hidden_size, 1, limits::MAX_CHANNELS),
            ("intermediate_size", self.intermediate_size, 1, 1 << 18),
            ("num_hidden_layers", self.num_hidden_layers, 1, limits::MAX_TRANSFORMER_LAYERS),
            ("num_attention_heads", self.num_attention_heads, 1, 1 << 12),
            ("num_key_value_heads", self.num_key_value_heads, 1, 1 << 12),
            ("head_dim", self.head_dim, 2, 1 << 12),
        ] {
            if !(least..=most).contains(&value) {
                return refuse(key, value.to_string(), limits::expected(&(least..=most)));
            }
        }
        if !self.head_dim.is_multiple_of(2) {
            return refuse("head_dim", self.head_dim.to_string(), "an even number".into());
        }
        if !self.num_attention_heads.is_multiple_of(self.num_key_value_heads) {
            let expected = format!("a divisor of `num_attention_heads`, {}", self.num_attention_heads);
            return refuse("num_key_value_heads", self.num_key_value_heads.to_string(), expected);
        }
        if !limits::is_epsilon(self.rms_norm_eps) {
            let found = format!("{:?}", self.rms_norm_eps);
            return refuse("rms_norm_eps", found, "more than 0 and at most 1".into());
        }
        let theta = self.theta();
        if !(theta.is_finite() && theta > 1.0) {
            return refuse("rope_theta", format!("{theta:?}"), "a number over 1".into());
        }
        Ok(())
    }
}

impl EncoderConfig for QwenConfig {
    fn width(&self) -> usize {
        self.hidden_size
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_of_the_base_are_read() {
        let theta = |json| QwenConfig::from_json(json).unwrap().theta();
        assert_eq!(theta(r#"{"rope_theta": 5000}"#), 5e3);
        assert_eq!(theta(r#"{"rope_parameters": {"rope_theta": 1e6, "rope_type": "default"}}"#), 1e6);
        assert_eq!(theta("{}"), 1e4);
        QwenConfig::of_4b().validate().unwrap();
    }

    #[test]
    fn impossible_values_are_named() {
        for (json, expected) in [
            ("{", "the Qwen3 text encoder's configuration cannot be read"),
            (r#"{"model_type": "qwen2"}"#, "`model_type` is `qwen2`, expected `qwen3`"),
            (r#"{"hidden_act": "gelu"}"#, "`hidden_act` is `gelu`, expected `silu`"),
            (r#"{"attention_bias": true}"#, "`attention_bias` is true"),
            (r#"{"rope_scaling": {"rope_type": "yarn"}}"#, "`rope_scaling` is of the type `yarn`"),
            (r#"{"num_attention_heads": 0}"#, "`num_attention_heads` is 0, expected a number from 1"),
            (r#"{"num_key_value_heads": 5}"#, "`num_key_value_heads` is 5, expected a divisor of"),
            (r#"{"head_dim": 7}"#, "`head_dim` is 7, expected an even number"),
            (r#"{"rms_norm_eps": 0}"#, "`rms_norm_eps` is 0.0"),
            (r#"{"rope_theta": 0}"#, "`rope_theta` is 0.0"),
        ] {
            let message = QwenConfig::from_json(json).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }
}
