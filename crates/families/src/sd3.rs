//! Stable Diffusion 3 and 3.5: CLIP-L, CLIP-G and T5, and a transformer of joint blocks.

use std::sync::Arc;

use kiln_clip::ClipEncoder;
use kiln_dit::sd3::Sd3Config;
use kiln_network::text::{EncoderConfig, TextStage};
use kiln_network::{ControlConfig, DenoiserConfig};
use kiln_scheduler::{Convention, FlowGrid};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{Names, Sd3Shape};
use serde_json::Value;

use crate::clip_unet::{clip_encoder, without_projection};
use crate::component::{Component, ComponentKind};
use crate::control::{self, FileControl, SD3_CONTROL};
use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::error::Result;
use crate::family::{DerivedConfig, Family};
use crate::file_networks::FileDenoiser;
use crate::flow::{FlowRules, static_scheduler};
use crate::lora;
use crate::mark::Mark;
use crate::text::ClipT5Text;
use crate::text_part::{TextPart, t5_part};
use crate::transformer_configs::sd3_config;
use crate::variant::Variant;

/// Stable Diffusion 3 and 3.5.
pub(crate) static SD3: &dyn Family = &Sd3;

/// T5's tokens if a request does not say how many.
const MAX_LENGTH: usize = 256;
/// Blocks of Stable Diffusion 3.5 large.
const LARGE_BLOCKS: usize = 38;

const MEDIUM: Variant = Variant { id: "sd3", label: "Stable Diffusion 3 medium" };
const MEDIUM_35: Variant = Variant { id: "sd35_medium", label: "Stable Diffusion 3.5 medium" };
const LARGE_35: Variant = Variant { id: "sd35_large", label: "Stable Diffusion 3.5 large" };
const OTHER: Variant = Variant { id: "sd3_other", label: "Stable Diffusion 3 of another shape" };

/// The first text encoder, CLIP-L.
pub(crate) const CLIP_L: Component = Component {
    folder: "text_encoder",
    kind: ComponentKind::Clip,
    tokenizer: Some("tokenizer"),
    prefixes: &["text_encoders.clip_l.transformer.", "text_encoder.", ""],
    lora: Some(lora::TEXT_ENCODER),
};

struct Sd3;

impl Family for Sd3 {
    fn id(&self) -> &'static str {
        "sd3"
    }

    fn label(&self) -> &'static str {
        "Stable Diffusion 3"
    }

    fn runs(&self) -> bool {
        true
    }

    fn classes(&self) -> &'static [&'static str] {
        &["StableDiffusion3Pipeline", "StableDiffusion3Img2ImgPipeline", "StableDiffusion3InpaintPipeline"]
    }

    fn components(&self) -> &'static [Component] {
        const ALL: &[Component] = &[
            CLIP_L,
            Component {
                folder: "text_encoder_2",
                kind: ComponentKind::Clip,
                tokenizer: Some("tokenizer_2"),
                prefixes: &["text_encoders.clip_g.transformer.", "text_encoder_2."],
                lora: Some(lora::TEXT_ENCODER_2),
            },
            Component {
                folder: "text_encoder_3",
                kind: ComponentKind::T5,
                tokenizer: Some("tokenizer_3"),
                prefixes: &["text_encoders.t5xxl.transformer.", "text_encoder_3.", ""],
                lora: Some(lora::TEXT_ENCODER_3),
            },
            Component::transformer(lora::TRANSFORMER_SD3),
            Component::VAE,
        ];
        ALL
    }

    fn denoiser(&self, json: &str, _pooled: Option<usize>) -> Result<Arc<dyn DenoiserConfig>> {
        Ok(Arc::new(Sd3Config::from_json(json)?))
    }

    fn control_classes(&self) -> &'static [(&'static str, &'static str)] {
        &[("SD3ControlNetModel", SD3_CONTROL)]
    }

    fn control(&self, _class: &str, json: &str) -> Result<Arc<dyn ControlConfig>> {
        control::sd3_control(json)
    }

    fn read_control(&self, source: &dyn ParamSource) -> Option<Result<FileControl>> {
        control::read_sd3_control(source)
    }

    fn text_stage(&self, parts: &[TextPart], denoiser: &dyn DenoiserConfig) -> Result<Box<dyn TextStage>> {
        let part = |folder| parts.iter().find(|part| part.component.folder == folder);
        let clip = |folder| -> Result<Option<ClipEncoder>> {
            part(folder).map(|part| clip_encoder(self.label(), part)).transpose()
        };
        let t5 = part("text_encoder_3").map(|part| t5_part(self.label(), part)).transpose()?;
        let encoders = [clip("text_encoder")?, clip("text_encoder_2")?];
        Ok(Box::new(ClipT5Text::sd3(encoders, t5, denoiser.text(), MAX_LENGTH)))
    }

    /// CLIP-L has no projection in single files: diffusers sets the identity (`create_diffusers_clip_model_from_checkpoint`).
    fn text_in_file(&self, component: &Component, config: Arc<dyn EncoderConfig>) -> Arc<dyn EncoderConfig> {
        if component.folder == CLIP_L.folder { without_projection(&config) } else { config }
    }

    fn texts_are_optional(&self) -> bool {
        true
    }

    fn denoiser_names(&self, config: &dyn DenoiserConfig) -> Names {
        config.own::<Sd3Config>().map(|config| Sd3Shape::authors_names(config.num_layers)).unwrap_or_default()
    }

    fn read_denoiser(&self, source: &dyn ParamSource) -> Option<FileDenoiser> {
        let shape = Sd3Shape::read(source)?;
        let variant = match (shape.qk_norm, shape.blocks, shape.dual_blocks.is_empty()) {
            (false, 24, _) => MEDIUM,
            (true, LARGE_BLOCKS, _) => LARGE_35,
            (true, _, false) => MEDIUM_35,
            _ => OTHER,
        };
        Some(FileDenoiser { names: Arc::new(shape.names()), config: sd3_config(&shape), variant })
    }

    fn derived_config(&self) -> Option<DerivedConfig> {
        Some(DerivedConfig {
            scaling_factor: 1.5305,
            shift_factor: Some(0.0609),
            vae_sample_size: 1024,
            force_upcast: false,
            gguf: "sd3",
        })
    }

    fn derived_scheduler(&self, _denoiser: &FileDenoiser) -> Value {
        static_scheduler(3.0)
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("StableDiffusion3", "a Stable Diffusion 3 model"),
            ("SD3Transformer", "a Stable Diffusion 3 transformer"),
            ("SD3", "a Stable Diffusion 3 model"),
        ]
    }

    fn control_marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] =
            &[Mark::names(SD3_CONTROL, &["controlnet_blocks.0.weight", "pos_embed_input.proj.weight"])];
        MARKS
    }

    fn denoiser_marks(&self) -> &'static [Mark] {
        const TRANSFORMER: &str = "a Stable Diffusion 3 transformer";
        const MARKS: &[Mark] = &[
            Mark::names(TRANSFORMER, &["joint_blocks.0.x_block.attn.qkv.weight"]),
            Mark::names(TRANSFORMER, &["joint_blocks.0.context_block.attn.qkv.weight"]),
            Mark::names(TRANSFORMER, &["transformer_blocks.0.attn.add_k_proj.weight", "pos_embed.proj.weight"]),
        ];
        MARKS
    }

    /// The authors' pages of the models; without a known name, those of Stable Diffusion 3 medium.
    fn defaults(&self, model: &ModelTraits<'_>) -> FamilyDefaults {
        let is_35 = ["3.5", "3_5", "sd35"].into_iter().any(|part| model.is_named(part));
        let defaults = match (is_35, model.is_named("turbo"), model.is_named("medium")) {
            (_, true, _) => FamilyDefaults::new(4, 1.0),
            (true, _, true) => FamilyDefaults::new(40, 4.5),
            (true, _, false) => FamilyDefaults::new(28, 3.5),
            (false, ..) => FamilyDefaults::new(28, 7.0),
        };
        defaults.with_strengths(0.6, 0.6)
    }

    fn flow(&self, _is_dynamic: bool, _convention: Convention) -> Option<FlowRules> {
        Some(FlowRules::of_pipeline(FlowGrid::Ends))
    }

    fn skips_blocks(&self) -> bool {
        true
    }

    fn lora_marks(&self) -> &'static [&'static str] {
        &["joint_blocks", "add_k_proj"]
    }
}
