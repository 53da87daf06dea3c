//! The configuration of Chroma's transformer.

use kiln_network::{Denoiser, DenoiserConfig, TextWidths};
use kiln_nn::limits::{MAX_CHANNELS, MAX_LAYERS};

use super::{ChromaTransformer, NETWORK};
use crate::error::Result;
use crate::flux::dims::{Checks, FluxDims};

/// The configuration of [`ChromaTransformer`]: diffusers' `ChromaTransformer2DModel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChromaConfig {
    /// The sizes.
    pub dims: FluxDims,
    /// Channels at the input of the network that makes the vectors.
    pub approximator_channels: usize,
    /// Its channels inside.
    pub approximator_hidden: usize,
    /// Its layers.
    pub approximator_layers: usize,
}

impl ChromaConfig {
    /// Reads diffusers' `config.json`. Missing keys have diffusers' defaults, which are those of Chroma.
    ///
    /// # Errors
    /// [`crate::Error::Json`], and [`crate::Error::Config`] for values that are impossible.
    pub fn from_json(text: &str) -> Result<Self> {
        let checks = Checks(NETWORK);
        let raw = checks.parse(text)?;
        let dims = checks.dims(&raw)?;
        let channels = raw.approximator_num_channels;
        checks.range("approximator_num_channels", channels, 8..=MAX_CHANNELS)?;
        if !channels.is_multiple_of(8) {
            // A quarter of it is sines and cosines.
            return checks.refuse("approximator_num_channels", channels, "a multiple of 8");
        }
        checks.range("approximator_hidden_dim", raw.approximator_hidden_dim, 1..=MAX_CHANNELS)?;
        checks.range("approximator_layers", raw.approximator_layers, 0..=MAX_LAYERS)?;
        Ok(Self {
            dims,
            approximator_channels: channels,
            approximator_hidden: raw.approximator_hidden_dim,
            approximator_layers: raw.approximator_layers,
        })
    }

    /// The number of vectors that the blocks and the last layer take.
    pub(super) fn vectors(&self) -> usize {
        3 * self.dims.single_layers + 12 * self.dims.layers + 2
    }
}

impl DenoiserConfig for ChromaConfig {
    fn build(&self) -> Box<dyn Denoiser> {
        Box::new(ChromaTransformer::new(*self))
    }

    fn text(&self) -> TextWidths {
        TextWidths { context: Some(self.dims.context_dim), pooled: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_configuration_is_chroma() {
        let config = ChromaConfig::from_json("{}").unwrap();
        assert_eq!((config.vectors(), config.dims.channels()), (344, 3072));
        assert_eq!(config.text(), TextWidths { context: Some(4096), pooled: None });
        let segments = config.build();
        let segments = segments.segments();
        // diffusers' names, without a layer that modulates a block.
        let names =
            |name: &str| segments.iter().flat_map(|part| part.params()).filter(|p| p.key.contains(name)).count();
        assert_eq!((names("norm1"), names("norm.linear"), names("time_text_embed"), names("norm_out")), (0, 0, 0, 0));
        assert_eq!((names("distilled_guidance_layer.norms."), names("distilled_guidance_layer.layers.4.")), (5, 4));
        // 8.9 billion, as published.
        assert_eq!((segments.parameters() + 50_000_000) / 100_000_000, 89);
    }

    #[test]
    fn errors_name_the_key() {
        for (json, expected) in [
            (r#"{"approximator_num_channels": 12}"#, "`approximator_num_channels` is 12, expected a multiple of 8"),
            (r#"{"approximator_hidden_dim": 0}"#, "`approximator_hidden_dim` is 0"),
            (r#"{"approximator_layers": 1000}"#, "`approximator_layers` is 1000, expected a number from 0 to 64"),
            (r#"{"in_channels": 2}"#, "the Chroma transformer's configuration: `in_channels` is 2"),
        ] {
            let found = ChromaConfig::from_json(json).unwrap_err().to_string();
            assert!(found.contains(expected), "{json}: {found}");
        }
    }
}
