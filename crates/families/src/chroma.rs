//! Chroma: T5 as the only text encoder, and FLUX.1's blocks without modulation weights.

use std::sync::Arc;

use kiln_dit::ChromaConfig;
use kiln_network::DenoiserConfig;
use kiln_network::text::TextStage;
use kiln_scheduler::{Convention, FlowGrid};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{FluxDialect, FluxShape, Names};
use serde_json::Value;

use crate::component::{Component, ComponentKind};
use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::error::{Error, Result};
use crate::family::{DerivedConfig, Family};
use crate::file_networks::FileDenoiser;
use crate::flow::{FlowRules, dynamic_scheduler};
use crate::flux::AUTOENCODER;
use crate::lora;
use crate::mark::Mark;
use crate::text::MaskedT5Text;
use crate::text_part::{TextPart, t5_part};
use crate::transformer_configs::flux_config;
use crate::variant::Variant;

/// Chroma.
pub(crate) static CHROMA: &dyn Family = &Chroma;

const VARIANT: Variant = Variant { id: "chroma", label: "Chroma" };
/// The text encoder.
const T5: Component = Component {
    folder: "text_encoder",
    kind: ComponentKind::T5,
    tokenizer: Some("tokenizer"),
    prefixes: &["text_encoders.t5xxl.transformer.", "text_encoder.", ""],
    lora: Some(lora::TEXT_ENCODER_T5),
};
/// T5's tokens if a request does not say how many.
const MAX_LENGTH: usize = 512;

struct Chroma;

impl Family for Chroma {
    fn id(&self) -> &'static str {
        "chroma"
    }

    fn label(&self) -> &'static str {
        "Chroma"
    }

    fn runs(&self) -> bool {
        true
    }

    fn classes(&self) -> &'static [&'static str] {
        &["ChromaPipeline", "ChromaImg2ImgPipeline", "ChromaInpaintPipeline"]
    }

    fn components(&self) -> &'static [Component] {
        const ALL: &[Component] = &[T5, Component::transformer(lora::TRANSFORMER_FLUX), Component::VAE];
        ALL
    }

    fn denoiser(&self, json: &str, _pooled: Option<usize>) -> Result<Arc<dyn DenoiserConfig>> {
        Ok(Arc::new(ChromaConfig::from_json(json)?))
    }

    fn text_stage(&self, parts: &[TextPart], _denoiser: &dyn DenoiserConfig) -> Result<Box<dyn TextStage>> {
        let missing = Error::OtherEncoder { folder: T5.folder, family: self.label() };
        let part = t5_part(self.label(), parts.first().ok_or(missing)?)?;
        Ok(Box::new(MaskedT5Text::new(part, MAX_LENGTH)))
    }

    fn denoiser_names(&self, config: &dyn DenoiserConfig) -> Names {
        let blocks = config.own::<ChromaConfig>().map(|config| (config.dims.layers, config.dims.single_layers));
        blocks.map(|(double, single)| FluxDialect::Authors.names(double, single)).unwrap_or_default()
    }

    fn read_denoiser(&self, source: &dyn ParamSource) -> Option<FileDenoiser> {
        let shape = FluxShape::read(source).filter(|shape| shape.approximator.is_some())?;
        Some(FileDenoiser { names: Arc::new(shape.names()), config: flux_config(&shape), variant: VARIANT })
    }

    fn derived_config(&self) -> Option<DerivedConfig> {
        Some(DerivedConfig { gguf: "flux", ..AUTOENCODER })
    }

    fn derived_scheduler(&self, _denoiser: &FileDenoiser) -> Value {
        dynamic_scheduler()
    }

    fn sample_size(&self) -> usize {
        128
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[("ChromaTransformer", "a Chroma transformer"), ("Chroma", "a Chroma model")]
    }

    fn denoiser_marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[Mark::names("a Chroma transformer", &["distilled_guidance_layer.in_proj.weight"])];
        MARKS
    }

    fn defaults(&self, _model: &ModelTraits<'_>) -> FamilyDefaults {
        FamilyDefaults::new(35, 5.0).with_strengths(0.9, 0.6)
    }

    /// ComfyUI has a plain table with the shift 1.
    fn flow(&self, _is_dynamic: bool, _convention: Convention) -> Option<FlowRules> {
        Some(FlowRules { table_mu: Some(0.0), ..FlowRules::of_pipeline(FlowGrid::Even) })
    }

    fn lora_marks(&self) -> &'static [&'static str] {
        &["distilled_guidance_layer"]
    }
}
