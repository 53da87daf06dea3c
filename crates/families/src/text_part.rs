//! The text encoders of a model, as a family makes its text stage of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kiln_clip::{ClipPadding, Tokenizer};
use kiln_network::text::EncoderConfig;

use crate::component::Component;
use crate::error::Result;

/// A text encoder of a model.
#[derive(Debug, Clone)]
pub struct TextPart {
    /// Its place in the model.
    pub component: &'static Component,
    /// Its configuration, made by [`crate::Family::text_encoder`].
    pub config: Arc<dyn EncoderConfig>,
    /// The location of its tokenizer; `None` for plans and measurements, which encode no prompts.
    pub tokenizer: Option<TokenizerFiles>,
}

impl PartialEq for TextPart {
    /// Compares the networks, and not the tokenizers.
    fn eq(&self, other: &Self) -> bool {
        self.component == other.component && *self.config == *other.config
    }
}

/// The location of a tokenizer.
#[derive(Debug, Clone)]
pub enum TokenizerFiles {
    /// In a folder of its own.
    Folder(PathBuf),
    /// In the notes of a file.
    Kept {
        /// The file.
        origin: PathBuf,
        /// The texts by file name.
        texts: BTreeMap<String, String>,
    },
    /// CLIP's tokenizer, which is in the program.
    Clip(ClipPadding),
}

impl TokenizerFiles {
    /// Reads a tokenizer of CLIP.
    ///
    /// # Errors
    /// Errors of [`Tokenizer::open`].
    pub fn clip(&self) -> Result<Tokenizer> {
        Ok(match self {
            Self::Folder(folder) => Tokenizer::open(folder)?,
            Self::Kept { origin, texts } => Tokenizer::from_texts(origin, texts)?,
            Self::Clip(padding) => Tokenizer::clip(*padding)?,
        })
    }
}
