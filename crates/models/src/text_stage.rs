//! The text stage of a model: which text encoders it has, and how they are used.

use kiln_clip::{ClipEncoder, ClipText, HiddenLayer, TextEncoder, TextEncoderConfig, Tokenizer};
use kiln_families::{FamilyRef, TEXT_ENCODER, TEXT_ENCODER_2, TextLayer};
use kiln_network::text::TextStage;
use kiln_weights::Network;

use crate::error::Result;
use crate::model::ModelFolder;
use crate::presets::Architecture;

/// The names of text encoders for LoRAs and embeddings, in a model's order.
const NETWORKS: [Network; 2] = [TEXT_ENCODER, TEXT_ENCODER_2];

impl ModelFolder {
    /// Its text encoders with their tokenizers. No weights are read.
    ///
    /// # Errors
    /// Errors of [`Self::tokenizer`], and [`crate::Error::Clip`] for an invalid configuration.
    pub fn text_stage(&self) -> Result<Box<dyn TextStage>> {
        let tokenizer = |i| self.tokenizer(i).map(Some);
        stage(self.family(), (self.first_text_encoder(), self.text_encoder_configs()), tokenizer)
    }

    /// The options of a request that have no effect on its text encoders: those of [`TextStage::ignores`].
    pub fn ignored_text_options(&self) -> &'static [&'static str] {
        ClipText::IGNORES
    }
}

impl Architecture {
    /// Its text encoders without tokenizers, for plans and measurements.
    ///
    /// # Errors
    /// [`crate::Error::Clip`] for an invalid configuration.
    pub fn text_stage(&self) -> Result<Box<dyn TextStage>> {
        stage(self.family, (0, &self.text_encoders), |_| Ok(None))
    }
}

/// A stage with CLIP's text encoders, the first of which has place `first` among [`NETWORKS`].
fn stage(
    family: FamilyRef,
    (first, configs): (usize, &[TextEncoderConfig]),
    tokenizer: impl Fn(usize) -> Result<Option<Tokenizer>>,
) -> Result<Box<dyn TextStage>> {
    let encoder = |(i, config): (usize, &TextEncoderConfig)| -> Result<ClipEncoder> {
        let network = NETWORKS.get(first + i).copied();
        Ok(ClipEncoder { tokenizer: tokenizer(i)?, encoder: TextEncoder::new(config.clone())?, network })
    };
    let encoders = configs.iter().enumerate().map(encoder).collect::<Result<_>>()?;
    let TextLayer { from_end, final_layer_norm } = family.text_layer(None);
    Ok(Box::new(ClipText::new(encoders, HiddenLayer { from_end, final_layer_norm })))
}
