//! The configuration of a control network.

use super::NETWORK;
use crate::error::{Error, Result};
use crate::sd3::config::Sd3Config;
use crate::sd3::raw_config::{RawConfig, check};

/// The configuration of an SD3 control network, whose values have been checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sd3ControlConfig {
    /// The sizes that it has in common with a transformer. Without a text `context_dim` is 0.
    pub network: Sd3Config,
    /// Whether its blocks take the text. Those of SD3.5's official networks do not.
    pub has_text: bool,
    /// Whether it makes tokens of the latents itself; otherwise it takes those of the transformer.
    pub has_patches: bool,
    /// Channels that follow the control image's latents: a mask, for inpainting.
    pub extra_channels: usize,
    /// Whether the pooled text is zeros. The latents of the control image are not shifted then, only scaled.
    pub zeros_pooled: bool,
}

impl Sd3ControlConfig {
    /// Reads the `config.json` of diffusers' `SD3ControlNetModel`. Keys that are missing have diffusers' defaults.
    ///
    /// # Errors
    /// [`Error::Json`], and [`Error::Config`] for values that are impossible or not supported.
    pub fn from_json(text: &str) -> Result<Self> {
        let mut raw = RawConfig::read(text, NETWORK)?;
        let has_text = raw.joint_attention_dim.is_some();
        raw.joint_attention_dim.get_or_insert(1);
        let mut network = raw.transformer(NETWORK)?;
        if !has_text {
            network.context_dim = 0;
        }
        // A mask has one.
        check(NETWORK, "extra_conditioning_channels", raw.extra_conditioning_channels, &(0..=1))?;
        if let Some(other) = raw.pos_embed_type.filter(|kind| kind != "sincos") {
            let (key, expected) = ("pos_embed_type", "sincos".into());
            return Err(Error::Config { network: NETWORK, key, found: other, expected });
        }
        Ok(Self {
            network,
            has_text,
            has_patches: raw.use_pos_embed,
            extra_channels: raw.extra_conditioning_channels,
            zeros_pooled: raw.force_zeros_for_pooled_projection.unwrap_or(false),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_with_a_text_and_without() {
        let config = Sd3ControlConfig::from_json("{}").unwrap();
        assert_eq!(
            (config.has_text, config.has_patches, config.extra_channels, config.zeros_pooled),
            (true, true, 0, true)
        );
        let json = r#"{"joint_attention_dim": null, "use_pos_embed": false, "pos_embed_type": null,
            "extra_conditioning_channels": 1, "force_zeros_for_pooled_projection": false}"#;
        let config = Sd3ControlConfig::from_json(json).unwrap();
        assert_eq!(
            (config.has_text, config.has_patches, config.extra_channels, config.zeros_pooled),
            (false, false, 1, false)
        );
        assert_eq!(config.network.context_dim, 0);
    }

    #[test]
    fn impossible_values_are_refused_with_their_key() {
        let message = |json: &str| Sd3ControlConfig::from_json(json).unwrap_err().to_string();
        assert!(message("7").contains("the SD3 ControlNet's configuration cannot be read"));
        assert!(message(r#"{"num_layers": 0}"#).contains("`num_layers` is 0"));
        assert!(message(r#"{"pos_embed_type": "rope"}"#).contains("`pos_embed_type` is rope, expected sincos"));
        assert!(message(r#"{"extra_conditioning_channels": 99999}"#).contains("`extra_conditioning_channels`"));
    }
}
