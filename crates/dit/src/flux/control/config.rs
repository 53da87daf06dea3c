//! The configuration of a control network of FLUX.1.

use kiln_nn::limits::MAX_CHANNELS;

use super::NETWORK;
use crate::error::Result;
use crate::flux::dims::{Checks, FluxDims};

/// The most types of control images.
const MAX_MODES: usize = 1024;

/// The configuration of [`super::FluxControlNet`]: diffusers' `FluxControlNetModel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FluxControlConfig {
    /// The sizes. Its blocks are fewer than the transformer's.
    pub dims: FluxDims,
    /// Channels of the pooled text.
    pub pooled_dim: usize,
    /// Whether the network takes a guidance scale.
    pub guidance: bool,
    /// The types of control images that a Union network knows; `None` for a network of one type.
    pub modes: Option<usize>,
}

impl FluxControlConfig {
    /// Reads diffusers' `config.json`.
    ///
    /// # Errors
    /// [`crate::Error::Json`], and [`crate::Error::Config`] for values that are impossible, and for networks that take pixels in
    /// place of latents.
    pub fn from_json(text: &str) -> Result<Self> {
        let checks = Checks(NETWORK);
        let raw = checks.parse(text)?;
        let dims = checks.dims(&raw)?;
        checks.range("pooled_projection_dim", raw.pooled_projection_dim, 1..=MAX_CHANNELS)?;
        if let Some(modes) = raw.num_mode {
            checks.range("num_mode", modes, 1..=MAX_MODES)?;
        }
        if let Some(channels) = raw.conditioning_embedding_channels {
            let expected = "null: control networks that take pixels are not supported";
            return checks.refuse("conditioning_embedding_channels", channels, expected);
        }
        let (pooled_dim, guidance) = (raw.pooled_projection_dim, raw.guidance_embeds);
        Ok(Self { dims, pooled_dim, guidance, modes: raw.num_mode })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flux::FluxControlNet;

    #[test]
    fn names_are_those_of_diffusers() {
        let union = r#"{"num_layers": 2, "num_single_layers": 1, "num_mode": 10, "guidance_embeds": true}"#;
        let net = FluxControlNet::new(FluxControlConfig::from_json(union).unwrap());
        let keys: Vec<&str> = net.segments().iter().flat_map(|part| part.params()).map(|p| p.key.as_str()).collect();
        for key in [
            "controlnet_x_embedder.bias",
            "controlnet_mode_embedder.weight",
            "controlnet_blocks.1.weight",
            "controlnet_single_blocks.0.bias",
            "time_text_embed.guidance_embedder.linear_1.weight",
            "single_transformer_blocks.0.proj_out.weight",
        ] {
            assert!(keys.contains(&key), "{key}: {keys:?}");
        }
    }

    #[test]
    fn errors_name_the_key() {
        for (json, expected) in [
            (r#"{"num_mode": 0}"#, "the FLUX ControlNet's configuration: `num_mode` is 0"),
            (r#"{"conditioning_embedding_channels": 16}"#, "`conditioning_embedding_channels` is 16, expected null"),
        ] {
            let found = FluxControlConfig::from_json(json).unwrap_err().to_string();
            assert!(found.contains(expected), "{json}: {found}");
        }
    }
}
