//! The components of a pipeline: networks with a folder each.

use kiln_weights::Network;

use crate::lora;

/// The kind of a network in a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ComponentKind {
    /// A denoiser: a U-Net.
    Unet,
    /// A denoiser: a diffusion transformer.
    Transformer,
    /// A CLIP text encoder.
    Clip,
    /// A T5 text encoder.
    T5,
    /// A language model as a text encoder.
    LanguageModel,
    /// An autoencoder with a Kullback-Leibler penalty, `AutoencoderKL` of diffusers.
    Vae,
}

impl ComponentKind {
    /// The name of the network in messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Unet => "U-Net",
            Self::Transformer => "transformer",
            Self::Clip => "CLIP text encoder",
            Self::T5 => "T5 text encoder",
            Self::LanguageModel => "Qwen text encoder",
            Self::Vae => "autoencoder (VAE)",
        }
    }

    /// The option of a model that replaces the network by another file.
    pub fn option(self) -> &'static str {
        match self {
            Self::Unet | Self::Transformer => "unet",
            Self::Clip | Self::T5 | Self::LanguageModel => "text_encoders",
            Self::Vae => "vae",
        }
    }

    /// Whether the network encodes text.
    pub fn is_text_encoder(self) -> bool {
        matches!(self, Self::Clip | Self::T5 | Self::LanguageModel)
    }
}

/// A component of a family's pipelines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Component {
    /// The folder in the diffusers layout, which is also the key in `model_index.json`.
    pub folder: &'static str,
    /// The network.
    pub kind: ComponentKind,
    /// The folder of the tokenizer of a text encoder.
    pub tokenizer: Option<&'static str>,
    /// Prefixes of the tensor names in single files, the most usual one first; an empty one is for files with the network
    /// alone.
    pub prefixes: &'static [&'static str],
    /// The names in LoRA files; `None` if LoRA files do not change the network.
    pub lora: Option<Network>,
}

/// Prefixes of a U-Net's names: in whole models, in U-Net files, in files of some programs.
const UNET_PREFIXES: &[&str] = &["model.diffusion_model.", "", "diffusion_model.", "unet."];
/// Prefixes of a transformer's names: in whole models, in files with the network alone.
const TRANSFORMER_PREFIXES: &[&str] = &["model.diffusion_model.", "", "diffusion_model.", "transformer."];
/// Prefixes of an autoencoder's names.
const VAE_PREFIXES: &[&str] = &["first_stage_model.", "", "vae."];

impl Component {
    /// A U-Net.
    pub(crate) const UNET: Self = Self {
        folder: "unet",
        kind: ComponentKind::Unet,
        tokenizer: None,
        prefixes: UNET_PREFIXES,
        lora: Some(lora::UNET),
    };

    /// An autoencoder.
    pub(crate) const VAE: Self =
        Self { folder: "vae", kind: ComponentKind::Vae, tokenizer: None, prefixes: VAE_PREFIXES, lora: None };

    /// A diffusion transformer with the names `lora` in LoRA files.
    pub(crate) const fn transformer(lora: Network) -> Self {
        Self {
            folder: "transformer",
            kind: ComponentKind::Transformer,
            tokenizer: None,
            prefixes: TRANSFORMER_PREFIXES,
            lora: Some(lora),
        }
    }

    /// Whether the network is the denoiser.
    pub fn is_denoiser(&self) -> bool {
        matches!(self.kind, ComponentKind::Unet | ComponentKind::Transformer)
    }

    /// The path of the configuration in a model folder.
    pub fn config(&self) -> String {
        format!("{}/config.json", self.folder)
    }
}
