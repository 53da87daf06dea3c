//! The text encoders of a model, as a family makes its text stage of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use kiln_clip::{ClipPadding, Tokenizer};
use kiln_network::text::EncoderConfig;
use kiln_qwen::{QwenConfig, QwenEncoder};
use kiln_t5::{T5Config, T5Encoder};

use crate::component::Component;
use crate::error::{Error, Result};
use crate::text::{QwenPart, T5Part};

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
    /// Reads a tokenizer of T5.
    ///
    /// # Errors
    /// Errors of [`kiln_t5::Tokenizer::open`].
    pub fn t5(&self) -> Result<kiln_t5::Tokenizer> {
        Ok(match self {
            Self::Folder(folder) => kiln_t5::Tokenizer::open(folder)?,
            Self::Kept { origin, texts } => kiln_t5::Tokenizer::from_texts(origin, texts)?,
            Self::Clip(_) => return Err(Error::OtherTokenizer("T5")),
        })
    }

    /// Reads a tokenizer of Qwen3.
    ///
    /// # Errors
    /// Errors of [`kiln_qwen::Tokenizer::open`].
    pub fn qwen(&self) -> Result<kiln_qwen::Tokenizer> {
        Ok(match self {
            Self::Folder(folder) => kiln_qwen::Tokenizer::open(folder)?,
            Self::Kept { origin, texts } => kiln_qwen::Tokenizer::from_texts(origin, texts)?,
            Self::Clip(_) => return Err(Error::OtherTokenizer("Qwen3")),
        })
    }

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

/// The configuration of a text encoder of T5.
pub(crate) fn t5_encoder(json: &str) -> Result<Arc<dyn EncoderConfig>> {
    Ok(Arc::new(T5Config::from_json(json)?))
}

/// A text encoder of T5 with its tokenizer, for a model of the family with the name `family`.
pub(crate) fn t5_part(family: &'static str, part: &TextPart) -> Result<T5Part> {
    let TextPart { component, config, tokenizer } = part;
    let config = config.own::<T5Config>().ok_or(Error::OtherEncoder { folder: component.folder, family })?;
    Ok(T5Part {
        encoder: T5Encoder::new(config.clone())?,
        tokenizer: tokenizer.as_ref().map(|files| files.t5()).transpose()?,
        network: component.lora,
    })
}

/// The configuration of a text encoder of Qwen3.
pub(crate) fn qwen_encoder(json: &str) -> Result<Arc<dyn EncoderConfig>> {
    Ok(Arc::new(QwenConfig::from_json(json)?))
}

/// A text encoder of Qwen3 with its tokenizer, for a model of the family with the name `family`. `hidden` are the numbers of layers
/// after which the hidden states are taken, of an encoder with as many layers as its argument.
pub(crate) fn qwen_part(
    family: &'static str,
    part: &TextPart,
    hidden: impl Fn(usize) -> Vec<usize>,
) -> Result<QwenPart> {
    let TextPart { component, config, tokenizer } = part;
    let config = config.own::<QwenConfig>().ok_or(Error::OtherEncoder { folder: component.folder, family })?;
    Ok(QwenPart {
        encoder: QwenEncoder::new(config.clone(), &hidden(config.num_hidden_layers))?,
        tokenizer: tokenizer.as_ref().map(|files| files.qwen()).transpose()?,
        network: component.lora,
    })
}
