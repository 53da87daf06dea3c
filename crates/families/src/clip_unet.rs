//! Networks that the families of the U-Net share: CLIP's text encoders and the U-Net.

use std::sync::Arc;

use kiln_clip::{ClipEncoder, ClipText, HiddenLayer, TextEncoder, TextEncoderConfig};
use kiln_network::DenoiserConfig;
use kiln_network::text::{EncoderConfig, TextStage};
use kiln_unet::{BlockConfig, UnetConfig};
use kiln_weights::ldm::{Names, UnetLevel, UnetShape};

use crate::error::{Error, Result};
use crate::family::{FamilyRef, TextLayer};
use crate::text_part::TextPart;

/// The configuration of a U-Net for text encoders whose pooled text has `pooled` channels.
pub(crate) fn denoiser(json: &str, pooled: Option<usize>) -> Result<Arc<dyn DenoiserConfig>> {
    let config = UnetConfig::from_json(json)?;
    Ok(Arc::new(match pooled {
        Some(pooled) => config.for_pooled(pooled),
        None => config,
    }))
}

/// CLIP's text encoders next to each other, for a model of `family`.
pub(crate) fn text_stage(family: FamilyRef, parts: &[TextPart]) -> Result<Box<dyn TextStage>> {
    let encoders = parts.iter().map(|part| clip_encoder(family.label(), part)).collect::<Result<_>>()?;
    let TextLayer { from_end, final_layer_norm } = family.text_layer(None);
    Ok(Box::new(ClipText::new(encoders, HiddenLayer { from_end, final_layer_norm })))
}

/// A text encoder of CLIP with its tokenizer, for a model of the family with the name `family`.
pub(crate) fn clip_encoder(family: &'static str, part: &TextPart) -> Result<ClipEncoder> {
    let TextPart { component, config, tokenizer } = part;
    let other = Error::OtherEncoder { folder: component.folder, family };
    let config = config.own::<TextEncoderConfig>().ok_or(other)?;
    Ok(ClipEncoder {
        encoder: TextEncoder::new(config.clone())?,
        tokenizer: tokenizer.as_ref().map(|files| files.clip()).transpose()?,
        network: component.lora,
    })
}

/// The configuration of a text encoder of CLIP without a projection of the pooled vector; another one as it is.
pub(crate) fn without_projection(config: &Arc<dyn EncoderConfig>) -> Arc<dyn EncoderConfig> {
    match config.own::<TextEncoderConfig>() {
        Some(clip) => Arc::new(clip.clone().without_projection()),
        None => config.clone(),
    }
}

/// The prefix and the names of a text encoder of CLIP that has place `place` among `count` encoders of a model of `family`.
pub(crate) fn text_names(
    family: FamilyRef,
    (place, count): (usize, usize),
    config: &dyn EncoderConfig,
) -> (&'static str, Names) {
    // Stable Diffusion 2 has OpenCLIP's encoder, with the usual activation.
    let is_open = config.own::<TextEncoderConfig>().is_some_and(|config| config.hidden_act == "gelu");
    let (prefix, dialect) = family.single_text(place, count, is_open);
    (prefix, dialect.names())
}

/// The names of a U-Net in files with CompVis' names.
pub(crate) fn names(config: &dyn DenoiserConfig) -> Names {
    config.own().map(|config| unet_shape(config).names()).unwrap_or_default()
}

/// The shape of the U-Net that `config` describes.
pub fn unet_shape(config: &UnetConfig) -> UnetShape {
    let level = |block: &BlockConfig| UnetLevel {
        channels: block.channels,
        depths: match &block.transformer {
            Some(transformer) => transformer.layers.clone(),
            None => vec![0; block.layers],
        },
    };
    UnetShape {
        in_channels: config.in_channels,
        out_channels: config.out_channels,
        down: config.down.iter().map(level).collect(),
        middle: config.mid.as_ref().map(|block| level(block).depths.first().copied().unwrap_or(0)),
        up: config.up.iter().map(level).collect(),
        context_dim: config.context_dim().unwrap_or(0),
        linear_projection: config.use_linear_projection,
        added_dim: config.added_embedding.map(|added| added.input_dim),
        guidance_dim: config.time_cond_proj_dim,
    }
}
