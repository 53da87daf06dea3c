//! Stable Diffusion 1 and 2: one CLIP text encoder, conditioning on its last layer.

use std::sync::Arc;

use kiln_network::text::{EncoderConfig, TextStage};
use kiln_network::{ControlConfig, DenoiserConfig};
use kiln_weights::ldm::{Names, UnetShape};

use crate::clip_unet;
use crate::component::{Component, ComponentKind};
use crate::control;
use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::error::Result;
use crate::family::{DerivedConfig, Family, LatentColors};
use crate::lora;
use crate::text_part::TextPart;
use crate::variant::Variant;

/// Stable Diffusion 1 and 2.
pub static SD: &dyn Family = &Sd;

/// Stable Diffusion 1.x.
const SD1: Variant = Variant { id: "sd1", label: "Stable Diffusion 1" };
/// Stable Diffusion 2.x.
pub const SD2: Variant = Variant { id: "sd2", label: "Stable Diffusion 2" };

/// The classes of models that are distilled into a latent consistency model.
const LCM_CLASSES: [&str; 2] = ["LatentConsistencyModelPipeline", "LatentConsistencyModelImg2ImgPipeline"];
/// Default guidance scale of a latent consistency model.
pub const LCM_GUIDANCE: f64 = 8.5;
/// Defaults of a latent consistency model.
const LCM_DEFAULTS: FamilyDefaults = FamilyDefaults::new(4, LCM_GUIDANCE);

struct Sd;

impl Family for Sd {
    fn id(&self) -> &'static str {
        "sd"
    }

    fn label(&self) -> &'static str {
        "Stable Diffusion 1 or 2"
    }

    fn runs(&self) -> bool {
        true
    }

    fn classes(&self) -> &'static [&'static str] {
        &[
            "StableDiffusionPipeline",
            "StableDiffusionInpaintPipeline",
            LCM_CLASSES[0],
            LCM_CLASSES[1],
            "StableDiffusionImg2ImgPipeline",
            "StableDiffusionControlNetPipeline",
            "StableDiffusionControlNetImg2ImgPipeline",
            "StableDiffusionControlNetInpaintPipeline",
            "StableDiffusionAdapterPipeline",
            "StableDiffusionPAGPipeline",
            "StableDiffusionPAGImg2ImgPipeline",
            "StableDiffusionPAGInpaintPipeline",
            "StableDiffusionControlNetPAGPipeline",
            "StableDiffusionControlNetPAGInpaintPipeline",
            "StableDiffusionSAGPipeline",
            "StableDiffusionInpaintPipelineLegacy",
        ]
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("StableDiffusionInstructPix2Pix", "a model that edits images by instructions (InstructPix2Pix)"),
            ("StableDiffusionUpscale", "the upscaler of Stable Diffusion 2"),
            ("StableDiffusionLatentUpscale", "an upscaler of latents"),
            ("StableDiffusionDepth2Img", "a Stable Diffusion model with a depth map"),
        ]
    }

    fn components(&self) -> &'static [Component] {
        const ALL: &[Component] = &[
            Component {
                folder: "text_encoder",
                kind: ComponentKind::Clip,
                tokenizer: Some("tokenizer"),
                prefixes: &["cond_stage_model.transformer.", "cond_stage_model.model.", "text_encoder.", ""],
                lora: Some(lora::TEXT_ENCODER),
            },
            Component::UNET,
            Component::VAE,
        ];
        ALL
    }

    fn denoiser(&self, json: &str, pooled: Option<usize>) -> Result<Arc<dyn DenoiserConfig>> {
        clip_unet::denoiser(json, pooled)
    }

    fn control_classes(&self) -> &'static [(&'static str, &'static str)] {
        control::UNET_CLASSES
    }

    fn control(&self, class: &str, json: &str) -> Result<Arc<dyn ControlConfig>> {
        control::unet_control(class, json)
    }

    fn text_stage(&self, parts: &[TextPart], _denoiser: &dyn DenoiserConfig) -> Result<Box<dyn TextStage>> {
        clip_unet::text_stage(SD, parts)
    }

    fn text_names(
        &self,
        place: (usize, usize),
        _component: &Component,
        config: &dyn EncoderConfig,
    ) -> (&'static str, Names) {
        clip_unet::text_names(SD, place, config)
    }

    fn denoiser_names(&self, config: &dyn DenoiserConfig) -> Names {
        clip_unet::names(config)
    }

    fn has_unet(&self, unet: &UnetShape) -> bool {
        unet.added_dim.is_none()
    }

    fn variant(&self, unet: &UnetShape) -> Variant {
        match (shape(unet), unet.middle, unet.context_dim) {
            ((channels, depths), Some(1), context)
                if channels == [320, 640, 1280, 1280] && depths == [1, 1, 1, 0] && [768, 1024].contains(&context) =>
            {
                if context == 768 {
                    SD1
                } else {
                    SD2
                }
            }
            _ => Variant::OTHER,
        }
    }

    fn defaults(&self, model: &ModelTraits<'_>) -> FamilyDefaults {
        match LCM_CLASSES.contains(&model.class) {
            true => LCM_DEFAULTS,
            false => FamilyDefaults::new(20, 7.0),
        }
    }

    fn has_distilled_img2img(&self) -> bool {
        true
    }

    fn has_stable_diffusion_schedule(&self) -> bool {
        true
    }

    /// `cheap_approximation` of `modules/sd_vae_approx.py` in AUTOMATIC1111 v1.10.
    fn latent_colors(&self) -> Option<LatentColors> {
        const FACTORS: &[[f32; 3]] =
            &[[0.298, 0.207, 0.208], [0.187, 0.286, 0.173], [-0.158, 0.189, 0.264], [-0.184, -0.271, -0.473]];
        Some(LatentColors { factors: FACTORS, scaling_factor: 0.18215 })
    }

    fn derived_config(&self) -> Option<DerivedConfig> {
        Some(DerivedConfig {
            scaling_factor: 0.18215,
            shift_factor: None,
            vae_sample_size: 512,
            force_upcast: false,
            gguf: "sd1",
        })
    }
}

/// The channels of a U-Net's levels, and the depth of the first transformer of each.
pub(crate) fn shape(unet: &UnetShape) -> (Vec<usize>, Vec<usize>) {
    let channels = unet.down.iter().map(|level| level.channels).collect();
    let depths = unet.down.iter().map(|level| level.depths.first().copied().unwrap_or_default()).collect();
    (channels, depths)
}
