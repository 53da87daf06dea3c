//! The text encoders of a model, as a family makes its text stage of them.

use std::sync::Arc;

use kiln_clip::TextEncoderConfig;
use kiln_network::text::EncoderConfig;
use kiln_qwen::{QwenConfig, QwenEncoder};
use kiln_t5::{T5Config, T5Encoder};

use crate::component::{Component, ComponentKind};
use crate::error::{Error, Result};
use crate::qwen_edit::{Edit, EditEncoder};
use crate::text::{QwenPart, T5Part};
use crate::tokenizer::TokenizerFiles;
use crate::z_image::QWEN3;

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

/// The configuration of a text encoder of `kind`, from the text of its `config.json`. `None` for other networks.
pub(crate) fn encoder_config(kind: ComponentKind, json: &str) -> Option<Result<Arc<dyn EncoderConfig>>> {
    fn shared<C: EncoderConfig, E>(config: std::result::Result<C, E>) -> Result<Arc<dyn EncoderConfig>>
    where
        Error: From<E>,
    {
        Ok(Arc::new(config?))
    }
    match kind {
        ComponentKind::Clip => Some(shared(TextEncoderConfig::from_json(json))),
        ComponentKind::T5 => Some(shared(T5Config::from_json(json))),
        ComponentKind::LanguageModel => Some(shared(QwenConfig::from_json(json))),
        ComponentKind::Unet | ComponentKind::Transformer | ComponentKind::Vae => None,
    }
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

/// The only text encoder of a model, one of Qwen3, with its tokenizer; `family` is the name of the family. `hidden` are the
/// numbers of layers after which the hidden states are taken, of an encoder with as many layers as its argument.
pub(crate) fn qwen_part(
    family: &'static str,
    parts: &[TextPart],
    hidden: impl Fn(usize) -> Vec<usize>,
) -> Result<QwenPart> {
    language_part(family, parts, false, |config| {
        let hidden = hidden(config.num_hidden_layers);
        QwenEncoder::new(config, &hidden)
    })
}

/// Like [`qwen_part`], of Qwen2.5-VL, with the normalized output of the last layer. In an editing model it has the vision tower, and the
/// kind of the model is given.
pub(crate) fn qwen_vl_part(family: &'static str, parts: &[TextPart]) -> Result<(QwenPart, Option<Edit>)> {
    let edit = parts.first().and_then(|part| Some((part, part.config.own::<EditEncoder>()?)));
    let Some((part, EditEncoder { config, kind })) = edit else {
        return Ok((language_part(family, parts, true, QwenEncoder::normed)?, None));
    };
    let part = TextPart { config: Arc::new(config.clone()), ..part.clone() };
    Ok((language_part(family, &[part], true, QwenEncoder::seeing)?, Some(*kind)))
}

/// The only text encoder of a model, with biases or without, which `encoder` builds.
fn language_part(
    family: &'static str,
    parts: &[TextPart],
    has_biases: bool,
    encoder: impl Fn(QwenConfig) -> kiln_qwen::Result<QwenEncoder>,
) -> Result<QwenPart> {
    let other = |folder| Error::OtherEncoder { folder, family };
    let TextPart { component, config, tokenizer } = parts.first().ok_or(other(QWEN3.folder))?;
    let config = config.own::<QwenConfig>().filter(|config| config.has_biases() == has_biases);
    let config = config.ok_or(other(component.folder))?;
    Ok(QwenPart {
        encoder: encoder(config.clone())?,
        tokenizer: tokenizer.as_ref().map(|files| files.qwen()).transpose()?,
        network: component.lora,
    })
}
