//! The configuration of a control network.

use kiln_nn::limits::{self, MAX_CHANNELS, MAX_LEVELS};
use serde::Deserialize;
use serde_json::{Value, json};

use super::union::{RawUnion, UnionConfig};
use crate::config::UnetConfig;
use crate::error::{Error, Result};

/// The class of Union networks in diffusers.
const UNION: &str = "ControlNetUnionModel";

/// A control network's configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct ControlConfig {
    /// Its encoder, as a U-Net's configuration. There is no way up.
    pub network: UnetConfig,
    /// Channels of the control image: 3.
    pub hint_channels: usize,
    /// Channels of the maps between the control image and the first feature map, each half as large as the one before.
    pub hint_widths: Vec<usize>,
    /// Whether blue comes first in the control image.
    pub bgr: bool,
    /// Whether residuals are means over all pixels (ControlNet shuffle). They are for the conditional rows alone then, and all
    /// have the same weight.
    pub global_pool: bool,
    /// The additional configuration of a Union network.
    pub union: Option<UnionConfig>,
}

/// The keys that a U-Net's configuration does not have, with diffusers' defaults.
#[derive(Deserialize)]
#[serde(default)]
struct RawControl {
    conditioning_channels: usize,
    conditioning_embedding_out_channels: Vec<usize>,
    controlnet_conditioning_channel_order: String,
    global_pool_conditions: bool,
}

impl Default for RawControl {
    fn default() -> Self {
        Self {
            conditioning_channels: 3,
            conditioning_embedding_out_channels: vec![16, 32, 96, 256],
            controlnet_conditioning_channel_order: "rgb".into(),
            global_pool_conditions: false,
        }
    }
}

impl ControlConfig {
    /// Reads the `config.json` of diffusers' `ControlNetModel`, and with a `_class_name` of `ControlNetUnionModel` that of a
    /// Union network.
    ///
    /// # Errors
    /// [`Error::Json`], [`Error::Config`] for impossible values, [`Error::Unsupported`] for features that Kiln does not
    /// support.
    pub fn from_json(text: &str) -> Result<Self> {
        let mut json: Value = serde_json::from_str(text)?;
        let raw: RawControl = serde_json::from_value(json.clone())?;
        let union = match json["_class_name"].as_str() {
            Some(UNION) => Some(UnionConfig::from_raw(&serde_json::from_value::<RawUnion>(json.clone())?)?),
            _ => None,
        };
        let bgr = match raw.controlnet_conditioning_channel_order.as_str() {
            "rgb" => false,
            "bgr" => true,
            other => {
                let key = "controlnet_conditioning_channel_order";
                return Err(Error::Unsupported { key, found: other.into(), supported: "rgb and bgr" });
            }
        };
        // The encoder is a U-Net's without the way up, whose blocks are named as a U-Net's so that it can be read as one.
        let levels = json["block_out_channels"].as_array().map_or(4, Vec::len).min(MAX_LEVELS + 1);
        if let Some(fields) = json.as_object_mut() {
            fields.insert("up_block_types".into(), json!(vec!["UpBlock2D"; levels]));
            fields.remove("reverse_transformer_layers_per_block");
            fields.remove("time_cond_proj_dim");
        }
        let network = UnetConfig { up: Vec::new(), ..UnetConfig::from_json(&json.to_string())? };
        let config = Self {
            network,
            hint_channels: raw.conditioning_channels,
            hint_widths: raw.conditioning_embedding_out_channels,
            bgr,
            global_pool: raw.global_pool_conditions,
            union,
        };
        config.check()?;
        Ok(config)
    }

    /// Refuses values that no network has.
    pub(super) fn check(&self) -> Result<()> {
        let range = 1..=MAX_CHANNELS;
        let error = |key, found: String, expected: String| Err(Error::Config { key, found, expected });
        if !range.contains(&self.hint_channels) {
            return error("conditioning_channels", self.hint_channels.to_string(), limits::expected(&range));
        }
        let widths = &self.hint_widths;
        let key = "conditioning_embedding_out_channels";
        if !(1..=MAX_LEVELS).contains(&widths.len()) {
            return error(key, format!("a list of {}", widths.len()), format!("a list of 1 to {MAX_LEVELS}"));
        }
        match widths.iter().find(|width| !range.contains(width)) {
            Some(width) => error(key, width.to_string(), limits::expected(&range)),
            None => self.union.map_or(Ok(()), |union| union.check(self.hint_depth())),
        }
    }

    /// Pixels of the control image for one value of the first feature map, in each direction.
    pub fn downscale(&self) -> usize {
        1 << self.hint_widths.len().saturating_sub(1)
    }

    /// Channels of an embedded control image.
    pub fn hint_depth(&self) -> usize {
        self.network.model_channels()
    }

    /// The channels of the skip connections that the network has residuals for.
    pub fn skips(&self) -> Vec<usize> {
        self.network.skips()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: &str) -> String {
        ControlConfig::from_json(json).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_configuration_is_that_of_stable_diffusion_1() {
        let config = ControlConfig::from_json("{}").unwrap();
        assert_eq!(config.skips(), [320, 320, 320, 320, 640, 640, 640, 1280, 1280, 1280, 1280, 1280]);
        assert_eq!((config.downscale(), config.hint_channels, config.bgr), (8, 3, false));
        assert!(config.network.up.is_empty());
    }

    #[test]
    fn what_no_network_has_is_refused() {
        assert!(message(r#"{"conditioning_channels": 0}"#).contains("`conditioning_channels` is 0"));
        assert!(
            message(r#"{"conditioning_embedding_out_channels": []}"#).contains("a list of 0, expected a list of 1")
        );
        assert!(
            message(r#"{"conditioning_embedding_out_channels": [16, 0]}"#).contains("is 0, expected a number from 1")
        );
        assert!(
            message(r#"{"controlnet_conditioning_channel_order": "gbr"}"#).contains("is gbr, which is not supported")
        );
        let union = |rest: &str| format!(r#"{{"_class_name": "ControlNetUnionModel"{rest}}}"#);
        assert_eq!(ControlConfig::from_json(&union("")).unwrap().union.unwrap().types, 6);
        assert!(message(&union(r#", "num_control_type": 0"#)).contains("`num_control_type` is 0"));
        assert!(message(&union(r#", "num_trans_head": 7"#)).contains("`num_trans_head` is 7"));
        assert!(
            message(&union(r#", "num_trans_channel": 8, "num_proj_channel": 8"#)).contains("`num_trans_channel` is 8")
        );
        assert!(message(&union(r#", "num_proj_channel": 8"#)).contains("`num_proj_channel` is 8"));
        assert!(message(r#"{"class_embed_type": "timestep"}"#).contains("`class_embed_type`"));
        assert!(message(r#"{"down_block_types": ["A"]}"#).contains("`down_block_types` is a list of 1"));
        assert!(message("7").contains("cannot be read"));
    }
}
