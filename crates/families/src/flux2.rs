//! FLUX.2 klein: a language model as the text encoder, and a transformer of double and single blocks that share their modulations.
//! FLUX.2 dev, which has another language model, is recognized and not run.

use std::sync::Arc;

use kiln_dit::Flux2Config;
use kiln_network::DenoiserConfig;
use kiln_network::text::TextStage;
use kiln_scheduler::{Convention, FlowGrid, FlowMu};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{Flux2Dialect, Flux2Shape, Names};
use serde_json::Value;

use crate::component::Component;
use crate::control::ReferenceSizes;
use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::error::Result;
use crate::family::{DerivedConfig, Family};
use crate::file_networks::FileDenoiser;
use crate::flow::{FlowRules, dynamic_scheduler};
use crate::lora;
use crate::mark::Mark;
use crate::text::QwenText;
use crate::text_part::{TextPart, qwen_part};
use crate::transformer_configs::flux2_config;
use crate::variant::Variant;
use crate::z_image::QWEN3;

/// FLUX.2.
pub(crate) static FLUX2: &dyn Family = &Flux2;

/// The numbers of layers after which the hidden states are taken.
const HIDDEN: [usize; 3] = [9, 18, 27];

/// Models of both sizes, distilled or not.
const VARIANT: Variant = Variant { id: "flux2_klein", label: "FLUX.2 klein" };

struct Flux2;

impl Family for Flux2 {
    fn id(&self) -> &'static str {
        "flux2"
    }

    fn label(&self) -> &'static str {
        "FLUX.2 klein"
    }

    fn runs(&self) -> bool {
        true
    }

    fn classes(&self) -> &'static [&'static str] {
        &["Flux2KleinPipeline", "Flux2KleinInpaintPipeline"]
    }

    fn components(&self) -> &'static [Component] {
        const ALL: &[Component] = &[QWEN3, Component::transformer(lora::TRANSFORMER_FLUX2), Component::VAE];
        ALL
    }

    fn denoiser(&self, json: &str, _pooled: Option<usize>) -> Result<Arc<dyn DenoiserConfig>> {
        Ok(Arc::new(Flux2Config::from_json(json)?))
    }

    fn text_stage(&self, parts: &[TextPart], _denoiser: &dyn DenoiserConfig) -> Result<Box<dyn TextStage>> {
        let part = qwen_part(self.label(), parts, |_| HIDDEN.to_vec())?;
        Ok(Box::new(QwenText::klein(part)))
    }

    fn read_denoiser(&self, source: &dyn ParamSource) -> Option<FileDenoiser> {
        let shape = Flux2Shape::read(source)?;
        Some(FileDenoiser { names: Arc::new(shape.names()), config: flux2_config(&shape), variant: VARIANT })
    }

    fn denoiser_names(&self, config: &dyn DenoiserConfig) -> Names {
        let blocks = config.own::<Flux2Config>().map(|config| (config.layers, config.single_layers));
        blocks.map(|(double, single)| Flux2Dialect::Authors.names(double, single)).unwrap_or_default()
    }

    fn derived_config(&self) -> Option<DerivedConfig> {
        Some(DerivedConfig {
            scaling_factor: 1.0,
            shift_factor: None,
            vae_sample_size: 1024,
            force_upcast: false,
            gguf: "flux2",
        })
    }

    fn derived_scheduler(&self, _denoiser: &FileDenoiser) -> Value {
        dynamic_scheduler()
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("AutoencoderKLFlux2", "a FLUX.2 autoencoder"),
            ("Flux2Transformer", "a FLUX.2 transformer"),
            ("Flux2KleinKV", "a FLUX.2 klein model with a cache of references"),
            ("Flux2Pipeline", "a FLUX.2 dev model"),
            ("Flux2", "a FLUX.2 model"),
        ]
    }

    fn denoiser_marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[
            Mark::names("a FLUX.2 transformer", &["double_stream_modulation_img.lin.weight"]),
            Mark::names("a FLUX.2 transformer", &["double_stream_modulation_img.linear.weight"]),
        ];
        MARKS
    }

    fn defaults(&self, model: &ModelTraits<'_>) -> FamilyDefaults {
        let is_distilled = model.is_distilled.unwrap_or_else(|| !model.is_named("base"));
        let defaults = if is_distilled { FamilyDefaults::new(4, 1.0) } else { FamilyDefaults::new(50, 4.0) };
        defaults.with_strengths(0.6, 0.8).with_edits()
    }

    /// diffusers' `Flux2KleinPipeline`: images of more pixels are made smaller first.
    fn references(&self) -> Option<ReferenceSizes> {
        Some(ReferenceSizes::AtMost(1 << 20))
    }

    /// The exponent of every size is that of ComfyUI's `supported_models.py`.
    fn flow(&self, _is_dynamic: bool, _convention: Convention) -> Option<FlowRules> {
        let rules = FlowRules::of_pipeline(FlowGrid::Even).with_table(10_000, 2.02);
        Some(FlowRules { mu: FlowMu::Empirical, ..rules })
    }

    fn lora_marks(&self) -> &'static [&'static str] {
        &["double_stream_modulation", "to_qkv_mlp_proj"]
    }
}
