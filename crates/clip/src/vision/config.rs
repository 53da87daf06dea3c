//! The configuration of an image encoder: `image_encoder/config.json`, or the shapes of its tensors.

use std::path::Path;

use kiln_nn::limits;
use kiln_nn::ops::Activation;
use kiln_weights::{MAX_CONFIG_BYTES, ParamSource};
use serde::Deserialize;

use crate::config::activation_of;
use crate::error::{Error, Result, format_error, read_text};

/// The `model_type` in an image encoder's file.
const MODEL_TYPE: &str = "clip_vision_model";
/// Heads of the published encoders without one for every 64 channels: ViT-H/14 (1280 channels) and bigG/14 (1664).
const WIDE_HEADS: usize = 16;
/// Channels from which an encoder has [`WIDE_HEADS`] heads.
const WIDE: usize = 1024;
/// Channels of the image embeddings of the encoders by OpenAI that IP-Adapters use: ViT-L/14.
const OPENAI_PROJECTION: usize = 768;

/// The configuration of a CLIP image encoder. Missing keys have the values of transformers' `CLIPVisionConfig`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct VisionConfig {
    /// Channels of the tokens.
    pub hidden_size: usize,
    /// Channels of the hidden layer of the feed-forward blocks.
    pub intermediate_size: usize,
    /// Channels of the image embeddings.
    pub projection_dim: usize,
    /// The number of layers.
    pub num_hidden_layers: usize,
    /// The number of heads, which divides `hidden_size`.
    pub num_attention_heads: usize,
    /// Channels of an image: 3.
    pub num_channels: usize,
    /// Width and height of an image in pixels.
    pub image_size: usize,
    /// Width and height of a patch in pixels.
    pub patch_size: usize,
    /// The epsilon of the layer normalizations.
    pub layer_norm_eps: f64,
    /// The activation of the feed-forward blocks by its name in configuration files: `quick_gelu` or `gelu`.
    pub hidden_act: String,
    /// The kind of network.
    pub model_type: String,
}

impl Default for VisionConfig {
    fn default() -> Self {
        Self {
            hidden_size: 768,
            intermediate_size: 3072,
            projection_dim: 512,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            num_channels: 3,
            image_size: 224,
            patch_size: 32,
            layer_norm_eps: 1e-5,
            hidden_act: "quick_gelu".into(),
            model_type: MODEL_TYPE.into(),
        }
    }
}

impl VisionConfig {
    /// Reads and checks the text of a `config.json`.
    ///
    /// # Errors
    /// [`Error::VisionConfig`] with the invalid value and the possible ones.
    pub fn from_json(text: &str) -> Result<Self> {
        let config: Self =
            serde_json::from_str(text).map_err(|error| Error::VisionConfig(format!("is not valid: {error}")))?;
        config.validate()?;
        Ok(config)
    }

    /// Reads and checks `config.json` in an image encoder's folder.
    ///
    /// # Errors
    /// [`Error::Io`], or [`Error::Format`] with the file and the error of [`Self::from_json`].
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join("config.json");
        Self::from_json(&read_text(&path, MAX_CONFIG_BYTES)?).map_err(|error| format_error(&path, error.to_string()))
    }

    /// The configuration of a file without one, from its tensors' shapes. Shapes say neither heads nor activation: heads are
    /// those of the published encoders (16 of ViT-L, ViT-H and bigG, else one for every 64 channels), and the activation is
    /// `quick_gelu` for ViT-L, which is OpenAI's, and `gelu` for OpenCLIP's encoders.
    ///
    /// # Errors
    /// [`Error::VisionConfig`] where a tensor is missing or its shape is impossible.
    pub fn from_shapes(source: &dyn ParamSource) -> Result<Self> {
        let shape = |key: &str| {
            let missing =
                || Error::VisionConfig(format!("has no tensor `{key}`, expected those of a CLIP image encoder"));
            source.info(key).map(|info| info.shape).ok_or_else(missing)
        };
        let dim = |key: &str, i: usize| {
            let found = shape(key)?;
            let odd =
                || Error::VisionConfig(format!("`{key}` has the shape {found:?}, which no CLIP image encoder has"));
            found.get(i).copied().filter(|&size| size > 0).ok_or_else(odd)
        };
        let patch = "vision_model.embeddings.patch_embedding.weight";
        let hidden_size = dim(patch, 0)?;
        let patch_size = dim(patch, 3)?;
        let projection_dim = dim("visual_projection.weight", 0)?;
        let positions = dim("vision_model.embeddings.position_embedding.weight", 0)?;
        let layer = |i: &usize| source.info(&format!("vision_model.encoder.layers.{i}.layer_norm1.weight")).is_some();
        let is_openai = projection_dim == OPENAI_PROJECTION;
        let config = Self {
            hidden_size,
            intermediate_size: dim("vision_model.encoder.layers.0.mlp.fc1.weight", 0)?,
            projection_dim,
            num_hidden_layers: (0..MAX_LAYERS).take_while(layer).count(),
            num_attention_heads: if hidden_size >= WIDE { WIDE_HEADS } else { (hidden_size / 64).max(1) },
            num_channels: dim(patch, 1)?,
            image_size: (positions - 1).isqrt() * patch_size,
            patch_size,
            hidden_act: if is_openai { "quick_gelu" } else { "gelu" }.into(),
            ..Self::default()
        };
        config.validate()?;
        Ok(config)
    }

    /// The activation of the feed-forward blocks.
    ///
    /// # Errors
    /// [`Error::VisionConfig`] for other names than `quick_gelu` and `gelu`.
    pub fn activation(&self) -> Result<Activation> {
        activation_of(&self.hidden_act).map_err(Error::VisionConfig)
    }

    /// Patches of an image.
    pub fn patches(&self) -> usize {
        (self.image_size / self.patch_size).pow(2)
    }

    /// Tokens of an image: its class and its patches.
    pub fn tokens(&self) -> usize {
        1 + self.patches()
    }

    /// Returns an error if the network cannot be built. The upper bounds are far above every real encoder (OpenCLIP's bigG:
    /// 1664 channels, 48 layers) and keep sizes in bytes from overflowing.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.model_type != MODEL_TYPE {
            return Err(Error::VisionConfig(format!(
                "model_type is `{}`, expected `{MODEL_TYPE}`; the folder may be that of another network",
                self.model_type
            )));
        }
        for (key, value, most) in [
            ("hidden_size", self.hidden_size, 1 << 16),
            ("intermediate_size", self.intermediate_size, 1 << 18),
            ("projection_dim", self.projection_dim, 1 << 16),
            ("num_hidden_layers", self.num_hidden_layers, MAX_LAYERS),
            ("num_attention_heads", self.num_attention_heads, 1 << 16),
            ("image_size", self.image_size, 1 << 12),
            ("patch_size", self.patch_size, 1 << 10),
        ] {
            if value == 0 || value > most {
                return Err(Error::VisionConfig(format!("{key} is {value}, expected 1 to {most}")));
            }
        }
        if self.num_channels != 3 {
            return Err(Error::VisionConfig(format!("num_channels is {}, expected 3", self.num_channels)));
        }
        if self.patch_size > self.image_size {
            return Err(Error::VisionConfig(format!(
                "patch_size is {}, expected at most image_size, {}",
                self.patch_size, self.image_size
            )));
        }
        if !self.hidden_size.is_multiple_of(self.num_attention_heads) {
            return Err(Error::VisionConfig(format!(
                "num_attention_heads is {}, expected a divisor of hidden_size, {}",
                self.num_attention_heads, self.hidden_size
            )));
        }
        if !limits::is_epsilon(self.layer_norm_eps) {
            let found = self.layer_norm_eps;
            return Err(Error::VisionConfig(format!(
                "layer_norm_eps is {found:?}, expected more than 0 and at most 1"
            )));
        }
        self.activation().map(|_| ())
    }
}

/// The largest number of layers.
const MAX_LAYERS: usize = 1 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_keys_have_transformers_values() {
        assert_eq!(VisionConfig::from_json("{}").unwrap(), VisionConfig::default());
    }

    #[test]
    fn impossible_values_are_named() {
        let message = |json: &str| VisionConfig::from_json(json).unwrap_err().to_string();
        assert!(message(r#"{"model_type": "clip_text_model"}"#).contains("expected `clip_vision_model`"));
        assert!(message(r#"{"patch_size": 0}"#).contains("patch_size is 0"));
        assert!(message(r#"{"patch_size": 300}"#).contains("at most image_size"));
        assert!(message(r#"{"num_channels": 4}"#).contains("num_channels is 4, expected 3"));
        assert!(message(r#"{"num_attention_heads": 7}"#).contains("a divisor of hidden_size"));
        assert!(message(r#"{"hidden_act": "relu"}"#).contains("hidden_act is `relu`"));
        assert!(message(r#"{"hidden_size": 99999999}"#).contains("hidden_size is 99999999"));
    }
}
