//! Stable Diffusion XL: two CLIP text encoders, conditioning on their penultimate layers, a pooled embedding, and sizes. Its
//! refiner has the second text encoder alone.

use std::sync::Arc;

use kiln_network::text::{EncoderConfig, TextStage};
use kiln_network::{ControlConfig, DenoiserConfig};
use kiln_scheduler::SigmaSchedule;
use kiln_weights::ldm::{ClipDialect, Names, UnetShape};

use crate::clip_unet;
use crate::component::{Component, ComponentKind};
use crate::control;
use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::error::Result;
use crate::family::{DerivedConfig, Family, LatentColors, TextLayer};
use crate::lora;
use crate::sd::shape;
use crate::text_part::TextPart;
use crate::variant::Variant;

/// Stable Diffusion XL.
pub static SDXL: &dyn Family = &Sdxl;

const BASE: Variant = Variant { id: "sdxl", label: "Stable Diffusion XL" };
/// The refiner, which continues images and has the second text encoder alone.
pub const SDXL_REFINER: Variant = Variant { id: "sdxl_refiner", label: "Stable Diffusion XL refiner" };
/// Half of the layers.
const SSD_1B: Variant = Variant { id: "ssd1b", label: "SSD-1B (Stable Diffusion XL)" };
/// A third of the layers.
const VEGA: Variant = Variant { id: "vega", label: "Segmind Vega (Stable Diffusion XL)" };

struct Sdxl;

impl Family for Sdxl {
    fn id(&self) -> &'static str {
        "sdxl"
    }

    fn label(&self) -> &'static str {
        BASE.label
    }

    fn runs(&self) -> bool {
        true
    }

    fn classes(&self) -> &'static [&'static str] {
        &[
            "StableDiffusionXLPipeline",
            "StableDiffusionXLInpaintPipeline",
            "StableDiffusionXLImg2ImgPipeline", // the refiner's class
            "StableDiffusionXLControlNetPipeline",
            "StableDiffusionXLControlNetImg2ImgPipeline",
            "StableDiffusionXLControlNetInpaintPipeline",
            "StableDiffusionXLControlNetUnionPipeline",
            "StableDiffusionXLControlNetUnionImg2ImgPipeline",
            "StableDiffusionXLControlNetUnionInpaintPipeline",
            "StableDiffusionXLAdapterPipeline",
            "StableDiffusionXLPAGPipeline",
            "StableDiffusionXLPAGImg2ImgPipeline",
            "StableDiffusionXLPAGInpaintPipeline",
            "StableDiffusionXLControlNetPAGPipeline",
            "StableDiffusionXLControlNetPAGImg2ImgPipeline",
        ]
    }

    fn components(&self) -> &'static [Component] {
        const ALL: &[Component] = &[
            Component {
                folder: "text_encoder",
                kind: ComponentKind::Clip,
                tokenizer: Some("tokenizer"),
                // CompVis' names, the refiner's, those of stable-diffusion.cpp and of an encoder file.
                prefixes: &[
                    "conditioner.embedders.0.transformer.",
                    "conditioner.embedders.0.model.",
                    "cond_stage_model.transformer.",
                    "text_encoder.",
                    "",
                ],
                lora: Some(lora::TEXT_ENCODER),
            },
            Component {
                folder: "text_encoder_2",
                kind: ComponentKind::Clip,
                tokenizer: Some("tokenizer_2"),
                prefixes: &["conditioner.embedders.1.model.", "cond_stage_model.1.transformer.", "text_encoder_2."],
                lora: Some(lora::TEXT_ENCODER_2),
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
        clip_unet::text_stage(SDXL, parts)
    }

    fn text_names(
        &self,
        place: (usize, usize),
        _component: &Component,
        config: &dyn EncoderConfig,
    ) -> (&'static str, Names) {
        clip_unet::text_names(SDXL, place, config)
    }

    fn denoiser_names(&self, config: &dyn DenoiserConfig) -> Names {
        clip_unet::names(config)
    }

    fn has_unet(&self, unet: &UnetShape) -> bool {
        unet.added_dim.is_some()
    }

    fn variant(&self, unet: &UnetShape) -> Variant {
        let (channels, depths) = shape(unet);
        match (channels.as_slice(), depths.as_slice(), unet.middle, unet.context_dim) {
            ([320, 640, 1280], [0, 2, 10], Some(10), 2048) => BASE,
            ([384, 768, 1536, 1536], [0, 4, 4, 0], Some(4), 1280) => SDXL_REFINER,
            ([320, 640, 1280], [0, 2, 4], Some(0), 2048) => SSD_1B,
            ([320, 640, 1280], [0, 1, 2], Some(0), 2048) => VEGA,
            _ => Variant::OTHER,
        }
    }

    fn model_label(&self, is_refiner: bool) -> &'static str {
        if is_refiner { SDXL_REFINER.label } else { BASE.label }
    }

    fn defaults(&self, _model: &ModelTraits<'_>) -> FamilyDefaults {
        FamilyDefaults::new(20, 5.0)
    }

    fn text_layer(&self, clip_skip: Option<usize>) -> TextLayer {
        TextLayer { from_end: clip_skip.unwrap_or(2), final_layer_norm: false }
    }

    fn a1111_ignores_clip_skip(&self) -> bool {
        true
    }

    fn zeros_for_no_negative(&self, force_zeros: Option<bool>) -> bool {
        force_zeros.unwrap_or(true) // diffusers' own default
    }

    fn takes_sizes(&self) -> bool {
        true
    }

    fn sigma_schedule(&self, asked: SigmaSchedule) -> SigmaSchedule {
        match asked {
            SigmaSchedule::AlignYourSteps => SigmaSchedule::AlignYourStepsSdxl,
            other => other,
        }
    }

    fn obeys_force_upcast(&self) -> bool {
        true
    }

    /// `cheap_approximation` of `modules/sd_vae_approx.py` in AUTOMATIC1111 v1.10.
    fn latent_colors(&self) -> Option<LatentColors> {
        const FACTORS: &[[f32; 3]] = &[
            [0.3448, 0.4168, 0.4395],
            [-0.1953, -0.029, 0.025],
            [0.1074, 0.0886, -0.0163],
            [-0.373, -0.2499, -0.2088],
        ];
        Some(LatentColors { factors: FACTORS, scaling_factor: 0.13025 })
    }

    fn derived_config(&self) -> Option<DerivedConfig> {
        Some(DerivedConfig {
            scaling_factor: 0.13025,
            shift_factor: None,
            vae_sample_size: 1024,
            force_upcast: true,
            gguf: "sdxl",
        })
    }

    fn single_text(&self, place: usize, count: usize, _is_open: bool) -> (&'static str, ClipDialect) {
        match (count, place) {
            (1, _) => ("conditioner.embedders.0.model.", ClipDialect::OpenClip),
            (_, 0) => ("conditioner.embedders.0.transformer.", ClipDialect::Transformers),
            _ => ("conditioner.embedders.1.model.", ClipDialect::OpenClip),
        }
    }
}
