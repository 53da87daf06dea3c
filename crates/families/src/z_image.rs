//! Z-Image and Z-Image-Turbo: a language model as the text encoder, and a transformer with the blocks of Lumina 2, a width of
//! its own and learned filling.

use std::sync::Arc;

use kiln_dit::z_image::ZImageConfig;
use kiln_network::DenoiserConfig;
use kiln_network::text::TextStage;
use kiln_scheduler::{Convention, FlowGrid};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{Names, ZImageDialect, ZImageShape};
use serde_json::Value;

use crate::component::{Component, ComponentKind};
use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::error::Result;
use crate::family::{DerivedConfig, Family};
use crate::file_networks::FileDenoiser;
use crate::flow::{FlowRules, static_scheduler};
use crate::flux::AUTOENCODER;
use crate::lora;
use crate::mark::Mark;
use crate::text::QwenText;
use crate::text_part::{TextPart, qwen_part};
use crate::transformer_configs::z_image_config;
use crate::variant::Variant;

/// Z-Image and Z-Image-Turbo.
pub(crate) static Z_IMAGE: &dyn Family = &ZImage;

/// The language model that is the only text encoder.
pub(crate) const QWEN3: Component = Component {
    folder: "text_encoder",
    kind: ComponentKind::LanguageModel,
    tokenizer: Some("tokenizer"),
    prefixes: &["text_encoders.qwen3_4b.transformer.", "text_encoders.qwen3_8b.transformer.", "text_encoder.", ""],
    lora: None,
};

/// Both models have the same shapes.
const VARIANT: Variant = Variant { id: "z_image", label: "Z-Image" };

struct ZImage;

impl Family for ZImage {
    fn id(&self) -> &'static str {
        "z_image"
    }

    fn label(&self) -> &'static str {
        "Z-Image"
    }

    fn runs(&self) -> bool {
        true
    }

    fn classes(&self) -> &'static [&'static str] {
        &["ZImagePipeline", "ZImageImg2ImgPipeline", "ZImageInpaintPipeline"]
    }

    fn components(&self) -> &'static [Component] {
        const ALL: &[Component] = &[QWEN3, Component::transformer(lora::TRANSFORMER_Z_IMAGE), Component::VAE];
        ALL
    }

    fn denoiser(&self, json: &str, _pooled: Option<usize>) -> Result<Arc<dyn DenoiserConfig>> {
        Ok(Arc::new(ZImageConfig::from_json(json)?))
    }

    /// The hidden state before the last layer.
    fn text_stage(&self, parts: &[TextPart], _denoiser: &dyn DenoiserConfig) -> Result<Box<dyn TextStage>> {
        let part = qwen_part(self.label(), parts, |layers| vec![layers.saturating_sub(1)])?;
        Ok(Box::new(QwenText::z_image(part)))
    }

    fn read_denoiser(&self, source: &dyn ParamSource) -> Option<FileDenoiser> {
        let shape = ZImageShape::read(source)?;
        Some(FileDenoiser { names: Arc::new(shape.names()), config: z_image_config(&shape), variant: VARIANT })
    }

    fn denoiser_names(&self, _config: &dyn DenoiserConfig) -> Names {
        ZImageDialect::Authors.names()
    }

    fn derived_config(&self) -> Option<DerivedConfig> {
        Some(DerivedConfig { gguf: "lumina2", ..AUTOENCODER })
    }

    /// The shift of Z-Image-Turbo: a file does not say which of the two it has.
    fn derived_scheduler(&self, _denoiser: &FileDenoiser) -> Value {
        static_scheduler(3.0)
    }

    fn sample_size(&self) -> usize {
        128
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("ZImageTransformer", "a Z-Image transformer"),
            ("ZImageControlNet", "a Z-Image ControlNet"),
            ("ZImageOmni", "a Z-Image model for several images (Omni)"),
            ("ZImage", "a Z-Image model"),
        ]
    }

    fn denoiser_marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[Mark::names("a Z-Image transformer", &["cap_pad_token", "cap_embedder.1.weight"])];
        MARKS
    }

    /// Z-Image has a shift of 6, Z-Image-Turbo one of 3.
    fn defaults(&self, model: &ModelTraits<'_>) -> FamilyDefaults {
        let is_base = model.shift.is_some_and(|shift| shift > 4.5);
        let defaults = if is_base { FamilyDefaults::new(50, 6.0) } else { FamilyDefaults::new(9, 1.0) };
        defaults.with_strengths(0.6, 1.0)
    }

    fn flow(&self, _is_dynamic: bool, _convention: Convention) -> Option<FlowRules> {
        Some(FlowRules::of_pipeline(FlowGrid::Even))
    }

    fn lora_marks(&self) -> &'static [&'static str] {
        &["diffusion_model.layers.0.attention.", "transformer.layers.0.attention.", "lora_unet_layers_0_attention_"]
    }
}
