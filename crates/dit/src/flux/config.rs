//! The configuration of FLUX.1's transformer.

use kiln_network::{Denoiser, DenoiserConfig, TextWidths};
use kiln_nn::limits::MAX_CHANNELS;

use super::NETWORK;
use super::dims::{Checks, FluxDims};
use super::transformer::FluxTransformer;
use crate::error::Result;

/// The configuration of [`FluxTransformer`]: diffusers' `FluxTransformer2DModel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FluxConfig {
    /// The sizes.
    pub dims: FluxDims,
    /// Channels of the pooled text.
    pub pooled_dim: usize,
    /// Whether the network takes a guidance scale, as FLUX.1 dev does.
    pub guidance: bool,
}

impl FluxConfig {
    /// Reads diffusers' `config.json`. Missing keys have diffusers' defaults, which are those of FLUX.1 schnell.
    ///
    /// # Errors
    /// [`crate::Error::Json`], and [`crate::Error::Config`] for values that are impossible.
    pub fn from_json(text: &str) -> Result<Self> {
        let checks = Checks(NETWORK);
        let raw = checks.parse(text)?;
        let dims = checks.dims(&raw)?;
        checks.range("pooled_projection_dim", raw.pooled_projection_dim, 1..=MAX_CHANNELS)?;
        Ok(Self { dims, pooled_dim: raw.pooled_projection_dim, guidance: raw.guidance_embeds })
    }
}

impl DenoiserConfig for FluxConfig {
    fn build(&self) -> Box<dyn Denoiser> {
        Box::new(FluxTransformer::new(*self))
    }

    fn text(&self) -> TextWidths {
        TextWidths { context: Some(self.dims.context_dim), pooled: Some(self.pooled_dim) }
    }

    fn takes_guidance(&self) -> bool {
        self.guidance
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(json: &str) -> String {
        FluxConfig::from_json(json).unwrap_err().to_string()
    }

    #[test]
    fn an_empty_configuration_is_flux_1_schnell() {
        let config = FluxConfig::from_json("{}").unwrap();
        assert_eq!(
            (config.dims.channels(), config.dims.latent_channels(), config.dims.extra_channels()),
            (3072, 16, 0)
        );
        assert_eq!(config.text(), TextWidths { context: Some(4096), pooled: Some(768) });
        assert!(!config.takes_guidance());
    }

    /// The numbers of parameters of the published models.
    #[test]
    fn all_models_have_their_parameters() {
        let parameters = |json| FluxConfig::from_json(json).unwrap().build().segments().parameters();
        let dev = 11_901_408_320;
        assert_eq!(parameters(r#"{"guidance_embeds": true}"#), dev);
        assert_eq!(parameters("{}"), dev - 256 * 3072 - 3072 * 3072 - 2 * 3072);
        let fill = r#"{"guidance_embeds": true, "in_channels": 384, "out_channels": 64}"#;
        assert_eq!(parameters(fill), dev + 320 * 3072);
        let extra = |json| FluxConfig::from_json(json).unwrap().dims.extra_channels();
        assert_eq!([extra(fill), extra(r#"{"in_channels": 128, "out_channels": 64}"#)], [80, 16]);
    }

    #[test]
    fn errors_name_the_key() {
        for (json, expected) in [
            (r#"{"patch_size": 2}"#, "`patch_size` is 2, expected a number from 1 to 1"),
            (r#"{"in_channels": 66}"#, "`in_channels` is 66, expected a multiple of 4"),
            (r#"{"in_channels": 0}"#, "`in_channels` is 0"),
            (r#"{"out_channels": 128}"#, "`out_channels` is 128, expected at most `in_channels`, 64"),
            (r#"{"num_layers": 10000000}"#, "`num_layers` is 10000000, expected a number from 0 to 1024"),
            (r#"{"num_layers": 0, "num_single_layers": 0}"#, "`num_layers` is 0, expected at least one block"),
            (r#"{"num_single_layers": 2000}"#, "`num_single_layers` is 2000"),
            (r#"{"num_attention_heads": 0}"#, "`num_attention_heads` is 0"),
            (r#"{"num_attention_heads": 1000}"#, "`num_attention_heads` is 1000, expected a number from 1 to 512"),
            (
                r#"{"attention_head_dim": 64}"#,
                "`axes_dims_rope` is [16, 56, 56], expected even numbers with the sum 64",
            ),
            (r#"{"axes_dims_rope": [15, 57, 56]}"#, "`axes_dims_rope` is [15, 57, 56]"),
            (r#"{"axes_dims_rope": [64, 64]}"#, "`axes_dims_rope` is a list of 2"),
            (r#"{"joint_attention_dim": 0}"#, "`joint_attention_dim` is 0"),
            (r#"{"pooled_projection_dim": 99999999}"#, "`pooled_projection_dim` is 99999999"),
            ("[", "the FLUX transformer's configuration cannot be read"),
        ] {
            let found = message(json);
            assert!(found.contains(expected), "{json}: {found}");
        }
    }
}
