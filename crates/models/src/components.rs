//! The networks of a model.

use kiln_clip::TextEncoderConfig;
use kiln_unet::UnetConfig;
use kiln_vae::VaeConfig;

use crate::presets::Architecture;

/// A network of a model with its configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Component<'a> {
    /// A text encoder, and its place among those of the model.
    TextEncoder(usize, &'a TextEncoderConfig),
    /// The denoiser.
    Unet(&'a UnetConfig),
    /// The autoencoder.
    Vae(&'a VaeConfig),
}

/// The networks of a model, in the order in which they run.
pub(crate) fn components(model: &Architecture) -> impl Iterator<Item = Component<'_>> {
    let texts = model.text_encoders.iter().enumerate().map(|(i, config)| Component::TextEncoder(i, config));
    texts.chain([Component::Unet(&model.unet), Component::Vae(&model.vae)])
}
