//! A family for tests: one block with two heads, a text stage of its own, flow prediction, 16 channels.
//!
//! It shows what a family needs: this module, and a line in the list. No other code knows it (tests/models/families.rs of `kiln-models`
//! searches the sources for its name), and the tests of all front ends run a model of it.

mod text;

use std::sync::Arc;

use kiln_dit::FluxConfig;
use kiln_network::DenoiserConfig;
use kiln_network::text::{EncoderConfig, TextStage};
use kiln_scheduler::{Convention, FlowGrid};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{Names, same_names};
use serde_json::{Value, json};

use crate::component::{Component, ComponentKind};
use crate::control::ReferenceSizes;
use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::error::{Error, Result};
use crate::family::{DerivedConfig, Family};
use crate::file_networks::{FileDenoiser, FileText};
use crate::flow::{FlowRules, static_scheduler};
use crate::lora;
use crate::text_part::TextPart;
use crate::variant::Variant;
use text::{ByteText, ByteTextConfig};

/// The family.
pub(crate) static TINY_DIT: &dyn Family = &TinyDit;

const VARIANT: Variant = Variant { id: "tiny_dit", label: "tiny-dit, a model for tests" };
/// A tensor that no other text encoder has.
const BYTE_TABLE: &str = "byte_table.weight";
/// A tensor of the only block.
const FIRST_BLOCK: &str = "single_transformer_blocks.0.attn.to_q.weight";
/// Channels of the latents in the single block's input: 16 latents of 2 by 2.
const CHANNELS: usize = 64;

struct TinyDit;

impl Family for TinyDit {
    fn id(&self) -> &'static str {
        "tiny_dit"
    }

    fn label(&self) -> &'static str {
        VARIANT.label
    }

    fn runs(&self) -> bool {
        true
    }

    fn classes(&self) -> &'static [&'static str] {
        &["TinyDitPipeline"]
    }

    fn components(&self) -> &'static [Component] {
        const ALL: &[Component] = &[
            Component {
                folder: "byte_encoder",
                kind: ComponentKind::LanguageModel,
                tokenizer: None,
                prefixes: &["byte_encoder."],
                lora: None,
            },
            Component {
                folder: "transformer",
                kind: ComponentKind::Transformer,
                tokenizer: None,
                prefixes: &["model.diffusion_model.", ""],
                lora: Some(lora::TRANSFORMER_FLUX),
            },
            Component::VAE,
        ];
        ALL
    }

    fn denoiser(&self, json: &str, _pooled: Option<usize>) -> Result<Arc<dyn DenoiserConfig>> {
        Ok(Arc::new(FluxConfig::from_json(json)?))
    }

    fn text_encoder(&self, _component: &Component, json: &str) -> Result<Arc<dyn EncoderConfig>> {
        Ok(Arc::new(ByteTextConfig::from_json(json)?))
    }

    fn text_stage(&self, parts: &[TextPart], _denoiser: &dyn DenoiserConfig) -> Result<Box<dyn TextStage>> {
        let config = parts.first().and_then(|part| part.config.own::<ByteTextConfig>());
        let other = Error::OtherEncoder { folder: "byte_encoder", family: VARIANT.label };
        Ok(Box::new(ByteText::new(*config.ok_or(other)?)))
    }

    fn denoiser_names(&self, _config: &dyn DenoiserConfig) -> Names {
        same_names()
    }

    /// A transformer without double blocks: FLUX.1 has some.
    fn read_denoiser(&self, source: &dyn ParamSource) -> Option<FileDenoiser> {
        let [channels, input] = <[usize; 2]>::try_from(source.info("x_embedder.weight")?.shape).ok()?;
        let context = *source.info("context_embedder.weight")?.shape.get(1)?;
        let has_double = source.info("transformer_blocks.0.attn.to_q.weight").is_some();
        (input == CHANNELS && !has_double && source.info(FIRST_BLOCK).is_some()).then(|| FileDenoiser {
            names: Arc::new(same_names()),
            config: transformer_config(channels, context),
            variant: VARIANT,
        })
    }

    fn read_text(&self, kind: ComponentKind, source: &dyn ParamSource) -> Option<FileText> {
        let shape = (kind == ComponentKind::LanguageModel).then(|| source.info(BYTE_TABLE)).flatten()?.shape;
        let width = *shape.get(1)?;
        Some(FileText::Own { config: json!({ "hidden_size": width }), width, names: same_names })
    }

    fn derived_scheduler(&self, _denoiser: &FileDenoiser) -> Value {
        static_scheduler(3.0)
    }

    fn derived_config(&self) -> Option<DerivedConfig> {
        Some(DerivedConfig { scaling_factor: 1.0, vae_sample_size: 64, gguf: "tiny_dit", ..DerivedConfig::default() })
    }

    fn defaults(&self, _model: &ModelTraits<'_>) -> FamilyDefaults {
        FamilyDefaults::new(4, 3.0).with_strengths(0.6, 0.6)
    }

    fn flow(&self, _is_dynamic: bool, _convention: Convention) -> Option<FlowRules> {
        Some(FlowRules::of_pipeline(FlowGrid::Ends))
    }

    fn references(&self) -> Option<ReferenceSizes> {
        Some(ReferenceSizes::AtMost(256 * 256))
    }

    fn sample_size(&self) -> usize {
        8
    }
}

/// The configuration of a transformer of one block with two heads of these channels together.
fn transformer_config(channels: usize, context: usize) -> Value {
    let head = channels / 2;
    let axis = head / 8 * 2;
    json!({
        "_class_name": "TinyDitTransformer",
        "attention_head_dim": head,
        "axes_dims_rope": [head - 2 * axis, axis, axis],
        "in_channels": CHANNELS,
        "joint_attention_dim": context,
        "num_attention_heads": 2,
        "num_layers": 0,
        "num_single_layers": 1,
        "pooled_projection_dim": context,
    })
}
