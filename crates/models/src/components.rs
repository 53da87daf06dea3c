//! The networks of a model.

use kiln_clip::TextEncoderConfig;
use kiln_unet::UnetConfig;
use kiln_vae::VaeConfig;

use crate::files::TEXT_FOLDERS;
use crate::presets::Architecture;

/// A network of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ComponentKind {
    /// A text encoder: the first is 0, the second of Stable Diffusion XL is 1.
    TextEncoder(usize),
    /// The denoiser.
    Unet,
    /// The autoencoder.
    Vae,
}

impl ComponentKind {
    /// The folder in the diffusers layout.
    pub fn folder(self) -> &'static str {
        match self {
            Self::TextEncoder(i) => TEXT_FOLDERS[i.min(1)].0,
            Self::Unet => "unet",
            Self::Vae => "vae",
        }
    }

    /// The field of [`ModelOptions`](crate::ModelOptions) that replaces it.
    pub fn field(self) -> &'static str {
        match self {
            Self::TextEncoder(_) => "text_encoders",
            Self::Unet => "unet",
            Self::Vae => "vae",
        }
    }

    /// The name of the network for messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::TextEncoder(_) => "text encoder",
            Self::Unet => "U-Net",
            Self::Vae => "autoencoder (VAE)",
        }
    }
}

/// A network of a model with its configuration.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Component<'a> {
    /// A text encoder: the first is 0, the second of Stable Diffusion XL is 1.
    TextEncoder(usize, &'a TextEncoderConfig),
    /// The denoiser.
    Unet(&'a UnetConfig),
    /// The autoencoder.
    Vae(&'a VaeConfig),
}

impl Component<'_> {
    /// Which network it is.
    pub fn kind(self) -> ComponentKind {
        match self {
            Self::TextEncoder(i, _) => ComponentKind::TextEncoder(i),
            Self::Unet(_) => ComponentKind::Unet,
            Self::Vae(_) => ComponentKind::Vae,
        }
    }
}

/// The networks of a model, in the order in which they run.
pub(crate) fn components(model: &Architecture) -> impl Iterator<Item = Component<'_>> {
    let texts = model.text_encoders.iter().enumerate().map(|(i, config)| Component::TextEncoder(i, config));
    texts.chain([Component::Unet(&model.unet), Component::Vae(&model.vae)])
}
