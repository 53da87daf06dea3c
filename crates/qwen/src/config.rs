//! The configuration of a language model, Qwen3 or the text part of Qwen2.5-VL: `config.json` of transformers.

use kiln_network::text::EncoderConfig;
use kiln_nn::limits;
use serde::Deserialize;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::vision::VisionConfig;

/// The names of the networks in messages.
const QWEN3: &str = "Qwen3 text encoder";
const QWEN_VL: &str = "Qwen2.5-VL text encoder";
/// The `model_type` in a text encoder's file.
const MODEL_TYPE: &str = "qwen3";
/// The `model_type` of Qwen2.5-VL: of the whole model, and of its text part.
const VISION_TYPES: [&str; 2] = ["qwen2_5_vl", "qwen2_5_vl_text"];
/// The key of the text part of a model that has other parts too.
const TEXT_PART: &str = "text_config";
/// The key of the vision tower.
const VISION_PART: &str = "vision_config";
/// The activation of the feed-forward layers.
const SILU: &str = "silu";
/// The kind of rotary positions without any scaling.
const PLAIN_ROPE: &str = "default";
/// The base of the rotary frequencies if a configuration has none, as in transformers.
const THETA: f64 = 10_000.0;
/// `mrope_section` if a configuration has none, as in transformers.
const SECTIONS: [usize; 3] = [16, 24, 24];

/// The configuration of a language model, Qwen3 or the text part of Qwen2.5-VL. Missing keys have the values of transformers'
/// `Qwen3Config`; Qwen2.5-VL divides `hidden_size` among the heads.
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
    /// The vision tower of Qwen2.5-VL, which an encoder of texts alone does not have.
    #[serde(skip)]
    pub vision: Option<VisionConfig>,
    hidden_act: String,
    attention_bias: bool,
    use_sliding_window: bool,
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
    mrope_section: Option<[usize; 3]>,
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
            vision: None,
            hidden_act: SILU.into(),
            attention_bias: false,
            use_sliding_window: false,
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

    /// Whether queries, keys and values have biases, and no normalizations: Qwen2.5-VL.
    pub fn has_biases(&self) -> bool {
        VISION_TYPES.contains(&self.model_type.as_str())
    }

    /// The name of the network in messages.
    pub fn label(&self) -> &'static str {
        if self.has_biases() { QWEN_VL } else { QWEN3 }
    }

    /// Reads and checks the text of a `config.json`. Of a model with other parts, the text part and the vision tower are read.
    ///
    /// # Errors
    /// [`Error::Json`] if it is not JSON of this form, and [`Error::Config`] with the key, its value and the possible ones.
    pub fn from_json(text: &str) -> Result<Self> {
        let unreadable = |error| Error::Json { network: "Qwen text encoder", error };
        let mut whole: Value = serde_json::from_str(text).map_err(unreadable)?;
        let vision = whole.get_mut(VISION_PART).map(Value::take).filter(Value::is_object);
        let own = match whole.get_mut(TEXT_PART).map(Value::take) {
            Some(mut part @ Value::Object(_)) => {
                if let (None, Some(kind)) = (part.get("model_type"), whole.get("model_type")) {
                    part["model_type"] = kind.clone();
                }
                part
            }
            _ => whole,
        };
        let divides = own.get("head_dim").is_none();
        let mut config: Self = serde_json::from_value(own).map_err(unreadable)?;
        if divides && config.has_biases() {
            config.head_dim = config.hidden_size.checked_div(config.num_attention_heads).unwrap_or(0);
        }
        config.vision = vision.map(serde_json::from_value).transpose().map_err(unreadable)?;
        config.validate()?;
        Ok(config)
    }

    /// The base of the rotary frequencies.
    pub fn theta(&self) -> f64 {
        let parameters = self.rope_parameters.as_ref().and_then(|parameters| parameters.rope_theta);
        parameters.or(self.rope_theta).unwrap_or(THETA)
    }

    /// The number of angles of a head that turn with each axis of an image's positions.
    pub(crate) fn sections(&self) -> [usize; 3] {
        let parameters = [&self.rope_parameters, &self.rope_scaling].into_iter().flatten();
        parameters.filter_map(|parameters| parameters.mrope_section).next().unwrap_or(SECTIONS)
    }

    /// Returns an error if the network cannot be built with the vision tower.
    pub(crate) fn validate_vision(&self) -> Result<VisionConfig> {
        let refuse =
            |key, found: String, expected: String| Err(Error::Config { network: self.label(), key, found, expected });
        let Some(vision) = &self.vision else {
            return refuse(VISION_PART, "missing".into(), "that of a vision tower".into());
        };
        vision.validate(self.hidden_size)?;
        let (sections, half) = (self.sections(), self.head_dim / 2);
        if sections.iter().try_fold(0usize, |all, &count| all.checked_add(count)) != Some(half) {
            let expected = format!("three numbers with the sum {half}, half of the head's channels");
            return refuse("mrope_section", format!("{sections:?}"), expected);
        }
        Ok(vision.clone())
    }

    /// Returns an error if the network cannot be built. The upper bounds are far above every real model and keep sizes in bytes
    /// from overflowing.
    pub(crate) fn validate(&self) -> Result<()> {
        let refuse =
            |key, found: String, expected: String| Err(Error::Config { network: self.label(), key, found, expected });
        if self.model_type != MODEL_TYPE && !self.has_biases() {
            let expected = format!("`{MODEL_TYPE}` or `{}`", VISION_TYPES[0]);
            return refuse("model_type", format!("`{}`", self.model_type), expected);
        }
        if self.hidden_act != SILU {
            return refuse("hidden_act", format!("`{}`", self.hidden_act), format!("`{SILU}`"));
        }
        for (key, value) in [("attention_bias", self.attention_bias), ("use_sliding_window", self.use_sliding_window)] {
            if value {
                return refuse(key, "true".into(), "false".into());
            }
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
    fn the_text_part_is_read() {
        let part = r#"{"hidden_size": 12, "num_attention_heads": 3, "num_key_value_heads": 1}"#;
        let json = format!(r#"{{"model_type": "qwen2_5_vl", "hidden_size": 7, "text_config": {part}}}"#);
        let config = QwenConfig::from_json(&json).unwrap();
        assert_eq!((config.hidden_size, config.head_dim, config.has_biases()), (12, 4, true));
        let message =
            QwenConfig::from_json(&json.replace(r#""num_attention_heads": 3"#, r#""num_attention_heads": 0"#));
        let message = message.unwrap_err().to_string();
        assert!(
            message.contains("the Qwen2.5-VL text encoder's configuration: `num_attention_heads` is 0"),
            "{message}"
        );
        assert!(!QwenConfig::of_4b().has_biases());
    }

    #[test]
    fn impossible_values_are_named() {
        for (json, expected) in [
            ("{", "the Qwen text encoder's configuration cannot be read"),
            (r#"{"model_type": "qwen2"}"#, "`model_type` is `qwen2`, expected `qwen3`"),
            (r#"{"hidden_act": "gelu"}"#, "`hidden_act` is `gelu`, expected `silu`"),
            (r#"{"attention_bias": true}"#, "`attention_bias` is true"),
            (r#"{"use_sliding_window": true}"#, "`use_sliding_window` is true"),
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
