//! Properties of models that options need.

use kiln_models::{ComponentKind, FamilyRef, ModelFolder};
use kiln_scheduler::Convention;

/// A property of a model without which an option has no meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelFeature {
    /// The denoiser is a U-Net.
    Unet,
    /// The denoiser is a transformer.
    Transformer,
    /// The denoiser is a transformer of which rows of a batch can leave out blocks.
    SkippedBlocks,
    /// The model is a flow model: its noise levels are shifted, and it predicts a velocity.
    Flow,
    /// The denoiser takes a guidance scale with classifier-free guidance.
    Guidance,
    /// The denoiser takes sizes and crops of the training image.
    Sizes,
    /// The denoiser takes reference images.
    References,
}

impl ModelFeature {
    /// Whether `model` has it.
    pub fn is_of(self, model: &ModelFolder) -> bool {
        match self {
            Self::Flow => model.scheduler_config().is_flow(),
            Self::Guidance => model.takes_guidance(),
            Self::References => model.references().is_some(),
            Self::Unet | Self::Transformer | Self::SkippedBlocks | Self::Sizes => self.may_be_of(model.family()),
        }
    }

    /// Whether models of `family` can have it.
    pub fn may_be_of(self, family: FamilyRef) -> bool {
        let has = |kind| family.components().iter().any(|component| component.kind == kind);
        match self {
            Self::Unet => has(ComponentKind::Unet),
            Self::Transformer => !has(ComponentKind::Unet),
            Self::SkippedBlocks => family.skips_blocks(),
            Self::Flow | Self::Guidance => family.flow(true, Convention::Diffusers).is_some(),
            Self::Sizes => family.takes_sizes(),
            Self::References => family.references().is_some(),
        }
    }

    /// Why an option that needs it has no meaning for the model or the family `name`, which lacks it.
    pub fn reason(self, name: &str) -> String {
        let (others, own) = match self {
            Self::Unet => ("U-Nets", "has a transformer"),
            Self::Transformer => ("transformers", "has a U-Net, for which there is `cache`"),
            Self::SkippedBlocks => ("transformers of Stable Diffusion 3", "has another network"),
            Self::Flow => ("flow models", "is none"),
            Self::Guidance => ("models that were distilled with guidance, as FLUX.1 dev", "is none"),
            Self::Sizes => ("models that take sizes, as SDXL", "is none"),
            Self::References => ("models that take reference images, as FLUX.1 Kontext and Qwen-Image-Edit", "is none"),
        };
        format!("it works with {others}, and {name} {own}")
    }
}
