//! The configuration of a text encoder: `text_encoder/config.json`.

use std::path::Path;

use kiln_nn::limits;
use kiln_nn::ops::Activation;
use kiln_weights::MAX_CONFIG_BYTES;
use serde::Deserialize;

use crate::error::{Error, Result, format_error, read_text};

/// The `model_type` in a text encoder's file.
const MODEL_TYPE: &str = "clip_text_model";
/// The architecture with a projection after the pooling.
const WITH_PROJECTION: &str = "CLIPTextModelWithProjection";
/// The end token in files from before transformers 4.31, for any tokenizer. It means that pooling uses the largest id.
const LEGACY_EOS: u32 = 2;

/// The configuration of a CLIP text encoder. Missing keys have the values of transformers' `CLIPTextConfig`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct TextEncoderConfig {
    /// Rows of the token table.
    pub vocab_size: usize,
    /// Channels of the tokens.
    pub hidden_size: usize,
    /// Channels of the hidden layer of the feed-forward blocks.
    pub intermediate_size: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of heads, which divides `hidden_size`.
    pub num_attention_heads: usize,
    /// The maximum length of a chunk.
    pub max_position_embeddings: usize,
    /// The epsilon of the layer normalizations.
    pub layer_norm_eps: f64,
    /// The activation of the feed-forward blocks by its name in configuration files; see [`Self::activation`].
    pub hidden_act: String,
    /// The end token, at which the pooled vector is taken; see [`Self::pool_at`].
    pub eos_token_id: u32,
    /// Channels of the projected pooled vector; ignored if there is no projection.
    pub projection_dim: Option<usize>,
    /// The classes that can read the weights.
    pub architectures: Vec<String>,
    /// The kind of network.
    pub model_type: String,
}

impl Default for TextEncoderConfig {
    fn default() -> Self {
        Self {
            vocab_size: 49408,
            hidden_size: 512,
            intermediate_size: 2048,
            num_hidden_layers: 12,
            num_attention_heads: 8,
            max_position_embeddings: 77,
            layer_norm_eps: 1e-5,
            hidden_act: "quick_gelu".into(),
            eos_token_id: 49407,
            projection_dim: Some(512),
            architectures: Vec::new(),
            model_type: MODEL_TYPE.into(),
        }
    }
}

impl TextEncoderConfig {
    /// Reads and checks the text of a `config.json`.
    ///
    /// # Errors
    /// [`Error::Config`] with the invalid value and the possible ones.
    pub fn from_json(text: &str) -> Result<Self> {
        let config: Self =
            serde_json::from_str(text).map_err(|error| Error::Config(format!("is not valid: {error}")))?;
        config.validate()?;
        Ok(config)
    }

    /// Reads and checks `config.json` in a text encoder's folder.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Format`] with the file and the error of [`Self::from_json`].
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        Self::from_json(&read_text(&path, MAX_CONFIG_BYTES)?).map_err(|error| format_error(&path, error.to_string()))
    }

    /// Whether the pooled vector is projected.
    pub fn has_projection(&self) -> bool {
        self.architectures.iter().any(|name| name == WITH_PROJECTION)
    }

    /// The configuration without a projection of the pooled vector.
    #[must_use]
    pub fn without_projection(mut self) -> Self {
        self.architectures.retain(|name| name != WITH_PROJECTION);
        self
    }

    /// Channels of the pooled vector.
    pub fn pooled_size(&self) -> usize {
        self.projection_dim.filter(|_| self.has_projection()).unwrap_or(self.hidden_size)
    }

    /// The activation of the feed-forward blocks.
    ///
    /// # Errors
    /// [`Error::Config`] if no CLIP text encoder uses an activation of this name. `gelu` is the exact form; the
    /// approximations with tanh have other names, and no encoder uses them.
    pub fn activation(&self) -> Result<Activation> {
        activation_of(&self.hidden_act).map_err(Error::Config)
    }

    /// The position of the token whose row is pooled: the first end token. If the file has the legacy end token 2, it
    /// is the first of the largest ids, which is the real end token; ids of [`crate::TokenEmbeddings`] are ignored. A
    /// chunk without an end token is pooled at 0, as in transformers.
    pub fn pool_at(&self, ids: &[u32]) -> usize {
        let largest = || ids.iter().copied().filter(|&id| (id as usize) < self.vocab_size).max();
        let end = if self.eos_token_id == LEGACY_EOS { largest() } else { Some(self.eos_token_id) };
        ids.iter().position(|&id| Some(id) == end).unwrap_or(0)
    }

    /// Returns an error if the network cannot be built. The upper bounds are far above every real encoder (OpenCLIP's
    /// bigG: 1280 channels, 32 layers) and keep sizes in bytes from overflowing.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.model_type != MODEL_TYPE {
            return Err(Error::Config(format!(
                "model_type is `{}`, expected `{MODEL_TYPE}`; the folder may be that of another network",
                self.model_type
            )));
        }
        let projection_dim = if self.has_projection() { self.projection_dim.unwrap_or(0) } else { 1 };
        for (key, value, most) in [
            ("vocab_size", self.vocab_size, 1 << 24),
            ("hidden_size", self.hidden_size, 1 << 16),
            ("intermediate_size", self.intermediate_size, 1 << 18),
            ("num_hidden_layers", self.num_hidden_layers, 1 << 10),
            ("num_attention_heads", self.num_attention_heads, 1 << 16),
            ("max_position_embeddings", self.max_position_embeddings, 1 << 16),
            ("projection_dim", projection_dim, 1 << 16),
        ] {
            if value == 0 || value > most {
                return Err(Error::Config(format!("{key} is {value}, expected 1 to {most}")));
            }
        }
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            return Err(Error::Config(format!(
                "num_attention_heads is {}, expected a divisor of hidden_size, {}",
                self.num_attention_heads, self.hidden_size
            )));
        }
        if !limits::is_epsilon(self.layer_norm_eps) {
            let found = self.layer_norm_eps;
            return Err(Error::Config(format!("layer_norm_eps is {found:?}, expected more than 0 and at most 1")));
        }
        self.activation().map(|_| ())
    }
}

/// The activation of this name in configuration files; else what was found and expected.
pub(crate) fn activation_of(name: &str) -> std::result::Result<Activation, String> {
    match name {
        "quick_gelu" => Ok(Activation::QuickGelu),
        "gelu" => Ok(Activation::GeluErf),
        other => Err(format!("hidden_act is `{other}`, expected `quick_gelu` or `gelu`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_keys_have_transformers_values() {
        assert_eq!(TextEncoderConfig::from_json("{}").unwrap(), TextEncoderConfig::default());
    }

    #[test]
    fn a_projection_is_named_by_the_architecture() {
        let plain = r#"{"architectures": ["CLIPTextModel"], "hidden_size": 16, "projection_dim": 8}"#;
        let projected = plain.replace("CLIPTextModel", WITH_PROJECTION);
        assert_eq!(TextEncoderConfig::from_json(plain).unwrap().pooled_size(), 16);
        assert_eq!(TextEncoderConfig::from_json(&projected).unwrap().pooled_size(), 8);
    }

    #[test]
    fn pooling_finds_the_first_end_token() {
        let pool_at =
            |eos_token_id, ids: &[u32]| TextEncoderConfig { eos_token_id, ..TextEncoderConfig::default() }.pool_at(ids);
        assert_eq!(pool_at(9, &[8, 1, 9, 9, 9]), 2);
        assert_eq!(pool_at(9, &[8, 1, 10, 9, 0]), 3);
        assert_eq!(pool_at(2, &[8, 2, 10, 9, 10]), 2);
        assert_eq!(pool_at(2, &[8, 49408, 49409, 10, 10]), 3); // an embedding's vectors before the end token
        assert_eq!(pool_at(9, &[8, 1]), 0);
    }
}
