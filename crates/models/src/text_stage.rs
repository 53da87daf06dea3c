//! The text stage of a model: which text encoders it has, and how they are used.

use kiln_families::{TextPart, TokenizerFiles};
use kiln_network::text::TextStage;

use crate::error::{Error, Result};
use crate::model::ModelFolder;
use crate::presets::Architecture;

impl ModelFolder {
    /// Its text encoders with their tokenizers. No weights are read.
    ///
    /// # Errors
    /// [`Error::Tokens`] for a model in one file with a text encoder that has fewer tokens than the program's tokenizer, since such
    /// files contain none; errors of tokenizers and of the networks.
    pub fn text_stage(&self) -> Result<Box<dyn TextStage>> {
        let with_tokenizer = |(i, part): (usize, &TextPart)| {
            let tokenizer = self.files().tokenizer_files(i);
            match (&tokenizer, part.config.vocab_size()) {
                (Some(TokenizerFiles::BuiltIn(own)), vocab_size) if vocab_size < own.tokens() => {
                    Err(Error::Tokens { path: self.path().to_path_buf(), vocab_size, tokenizer: *own })
                }
                _ => Ok(TextPart { tokenizer, ..part.clone() }),
            }
        };
        let parts = self.texts().iter().enumerate().map(with_tokenizer).collect::<Result<Vec<_>>>()?;
        Ok(self.family().text_stage(&parts, self.denoiser_config())?)
    }

    /// The options of a request that have no effect on its text encoders: those of [`TextStage::ignores`].
    pub fn ignored_text_options(&self) -> &'static [&'static str] {
        self.text_facts().ignores
    }
}

impl Architecture {
    /// Its text encoders without tokenizers, for plans and measurements.
    ///
    /// # Errors
    /// Errors of the networks for an invalid configuration.
    pub fn text_stage(&self) -> Result<Box<dyn TextStage>> {
        Ok(self.family.text_stage(&self.texts, self.denoiser.as_ref())?)
    }
}

/// The values of a model's text stage that decide before it is used.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextFacts {
    /// The options without effect.
    pub(crate) ignores: &'static [&'static str],
    /// Channels of each token of the text.
    pub(crate) context: usize,
    /// Channels of the pooled text; 0 if there is none.
    pub(crate) pooled: usize,
}

impl TextFacts {
    /// The values of `stage`.
    pub(crate) fn of(stage: &dyn TextStage) -> Self {
        use kiln_network::text::{CONTEXT, POOLED};
        let shapes = stage.shapes(stage.least());
        let channels = |name| {
            let shape = shapes.iter().find(|(known, _)| *known == name).map(|(_, shape)| shape);
            shape.and_then(|shape| shape.last()).copied().unwrap_or_default()
        };
        Self { ignores: stage.ignores(), context: channels(CONTEXT), pooled: channels(POOLED) }
    }
}
