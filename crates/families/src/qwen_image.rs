//! Qwen-Image: the language model of Qwen2.5-VL as the text encoder, a transformer of double blocks, and an autoencoder of videos; and
//! Qwen-Image-Edit, whose language model sees images too.

use std::sync::Arc;

use kiln_clip::ClipPadding;
use kiln_dit::QwenImageConfig;
use kiln_network::DenoiserConfig;
use kiln_network::text::{EncoderConfig, TextStage};
use kiln_qwen::Generation;
use kiln_scheduler::{Convention, FlowGrid};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{Names, QwenDialect, same_names};
use serde_json::{Value, json};

use crate::component::{Component, ComponentKind};
use crate::control::{ReferenceSizes, References};
use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::error::Result;
use crate::family::{DerivedConfig, Family};
use crate::file_networks::{FileDenoiser, FileText};
use crate::flow::FlowRules;
use crate::lora;
use crate::mark::Mark;
use crate::qwen_edit::{self, Edit, EditEncoder};
use crate::text::QwenText;
use crate::text_part::{TextPart, qwen_vl_part};
use crate::tokenizer::BuiltInTokenizer;
use crate::transformer_configs::flux_axes;
use crate::variant::Variant;

/// Qwen-Image.
pub(crate) static QWEN_IMAGE: &dyn Family = &QwenImage;

/// The text encoder.
const QWEN_VL: Component = Component {
    folder: "text_encoder",
    kind: ComponentKind::LanguageModel,
    tokenizer: Some("tokenizer"),
    prefixes: &["text_encoders.qwen25_7b.transformer.", "text_encoder.", ""],
    lora: None,
};
const VARIANT: Variant = Variant { id: "qwen_image", label: "Qwen-Image" };
/// The side of an image token in latents.
const TOKEN: usize = 2;

/// A form of the language model's names: the name of a bias of its first layer, the naming scheme, and the prefix below which the scheme
/// has the network.
type Form = (&'static str, fn() -> Names, &'static str);

/// The forms. Files of transformers since version 4.52 have the second one, GGUF files the third.
const LANGUAGE_MODEL: [Form; 3] = [
    ("model.layers.0.self_attn.q_proj.bias", same_names, "model."),
    ("model.language_model.layers.0.self_attn.q_proj.bias", same_names, "model.language_model."),
    ("blk.0.attn_q.bias", || QwenDialect::Gguf.names(), "model."),
];
/// The prefixes of the vision tower's names.
const VISION: [&str; 2] = ["visual.", "model.visual."];
/// Channels of a head of the language model.
const HEAD_DIM: usize = 128;
/// Channels of a head of the vision tower.
const VISION_HEAD_DIM: usize = 80;
/// The tensor by which ComfyUI marks transformers whose references have the timestep 0.
const ZERO_TIMESTEP: &str = "__index_timestep_zero__";
/// The largest number of blocks that are counted in a file.
const MAX_BLOCKS: usize = 1024;

struct QwenImage;

impl Family for QwenImage {
    fn id(&self) -> &'static str {
        "qwen_image"
    }

    fn label(&self) -> &'static str {
        "Qwen-Image"
    }

    fn runs(&self) -> bool {
        true
    }

    fn classes(&self) -> &'static [&'static str] {
        &[
            "QwenImagePipeline",
            "QwenImageImg2ImgPipeline",
            "QwenImageInpaintPipeline",
            qwen_edit::CLASSES[0],
            qwen_edit::CLASSES[1],
        ]
    }

    fn components(&self) -> &'static [Component] {
        const ALL: &[Component] = &[QWEN_VL, Component::transformer(lora::TRANSFORMER_QWEN_IMAGE), Component::VAE];
        ALL
    }

    fn denoiser(&self, json: &str, _pooled: Option<usize>) -> Result<Arc<dyn DenoiserConfig>> {
        Ok(Arc::new(QwenImageConfig::from_json(json)?))
    }

    fn text_stage(&self, parts: &[TextPart], _denoiser: &dyn DenoiserConfig) -> Result<Box<dyn TextStage>> {
        let (part, edit) = qwen_vl_part(self.label(), parts)?;
        Ok(Box::new(match edit {
            Some(kind) => QwenText::qwen_image_edit(part, kind),
            None => QwenText::qwen_image(part),
        }))
    }

    fn text_of_class(&self, class: &str, config: Arc<dyn EncoderConfig>) -> Arc<dyn EncoderConfig> {
        EditEncoder::of_class(class, config)
    }

    fn class_of_name(&self, name: &str) -> Option<&'static str> {
        Edit::class_of_name(name)
    }

    fn references(&self) -> Option<ReferenceSizes> {
        Some(Edit::One.references().sizes)
    }

    fn references_of(&self, model: &ModelTraits<'_>) -> Option<References> {
        Edit::of_class(model.class).map(Edit::references)
    }

    fn read_denoiser(&self, source: &dyn ParamSource) -> Option<FileDenoiser> {
        Some(FileDenoiser { names: Arc::new(same_names()), config: transformer_config(source)?, variant: VARIANT })
    }

    fn read_text(&self, kind: ComponentKind, source: &dyn ParamSource) -> Option<FileText> {
        match kind {
            ComponentKind::LanguageModel => text_config(source),
            kind => FileText::read(kind, source),
        }
    }

    /// Qwen2.5-VL is the only language model of a family whose tokenizer is that of Qwen2.
    fn built_in_tokenizer(&self, kind: ComponentKind, padding: ClipPadding) -> Option<BuiltInTokenizer> {
        match kind {
            ComponentKind::LanguageModel => Some(BuiltInTokenizer::Qwen(Generation::Qwen2)),
            kind => BuiltInTokenizer::of(kind, padding),
        }
    }

    fn derived_scheduler(&self, _denoiser: &FileDenoiser) -> Value {
        json!({
            "_class_name": "FlowMatchEulerDiscreteScheduler",
            "base_image_seq_len": 256,
            "base_shift": 0.5,
            "max_image_seq_len": 8192,
            "max_shift": 0.9,
            "num_train_timesteps": 1000,
            "shift": 1.0,
            "shift_terminal": 0.02,
            "time_shift_type": "exponential",
            "use_dynamic_shifting": true,
        })
    }

    fn denoiser_names(&self, _config: &dyn DenoiserConfig) -> Names {
        same_names()
    }

    fn derived_config(&self) -> Option<DerivedConfig> {
        Some(DerivedConfig {
            scaling_factor: 1.0,
            vae_sample_size: 1024,
            gguf: "qwen_image",
            ..DerivedConfig::default()
        })
    }

    fn sample_size(&self) -> usize {
        128
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("AutoencoderKLQwenImage", "a Qwen-Image autoencoder"),
            ("QwenImageTransformer", "a Qwen-Image transformer"),
            ("QwenImageEdit", "a Qwen-Image-Edit model of another kind"),
            ("QwenImageLayered", "a Qwen-Image-Layered model"),
            ("QwenImage", "a Qwen-Image model"),
        ]
    }

    fn marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[Mark::names(
            "a Qwen-Image ControlNet",
            &["transformer_blocks.0.img_mod.1.weight", "controlnet_blocks.0.weight"],
        )];
        MARKS
    }

    fn denoiser_marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] =
            &[Mark::names("a Qwen-Image transformer", &["transformer_blocks.0.img_mod.1.weight", "txt_norm.weight"])];
        MARKS
    }

    fn defaults(&self, model: &ModelTraits<'_>) -> FamilyDefaults {
        let defaults = match Edit::of_class(model.class) {
            Some(Edit::Several) => FamilyDefaults::new(40, 4.0).with_edits(),
            Some(Edit::One) => FamilyDefaults::new(50, 4.0).with_edits(),
            None => FamilyDefaults::new(50, 4.0),
        };
        defaults.with_strengths(0.6, 0.6)
    }

    /// The exponent of every size is that of ComfyUI's `supported_models.py`, whose shift is 1.15.
    fn flow(&self, _is_dynamic: bool, _convention: Convention) -> Option<FlowRules> {
        Some(FlowRules::of_pipeline(FlowGrid::Even).with_table(10_000, 1.15))
    }

    /// diffusers' `QwenImagePipeline` scales each token of the guided prediction to the norm of the conditional one.
    fn restored_norm(&self) -> Option<usize> {
        Some(TOKEN)
    }

    fn lora_marks(&self) -> &'static [&'static str] {
        &["transformer_blocks.0.txt_m", "transformer_blocks_0_txt_m"]
    }
}

/// The language model of Qwen2.5-VL whose tensors `source` has, with the heads of the official sizes. `None` for another one: Qwen3 has
/// no biases.
fn text_config(source: &dyn ParamSource) -> Option<FileText> {
    let (_, names, prefix) = LANGUAGE_MODEL.into_iter().find(|(bias, ..)| source.info(bias).is_some())?;
    let table = names();
    let shape = |key: &str| table.info(source, &format!("{prefix}{key}")).map(|info| info.shape);
    let rows = |key: &str| shape(&format!("layers.0.{key}"))?.first().copied();
    let [vocab_size, width] = shape("embed_tokens.weight")?.try_into().ok()?;
    let has_layer = |i: &usize| shape(&format!("layers.{i}.mlp.down_proj.weight")).is_some();
    let config = json!({
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vocab_size": vocab_size,
        "hidden_size": width,
        "intermediate_size": rows("mlp.gate_proj.weight")?,
        "num_hidden_layers": (0..MAX_BLOCKS).take_while(has_layer).count(),
        "num_attention_heads": width / HEAD_DIM,
        "num_key_value_heads": rows("self_attn.k_proj.weight")? / HEAD_DIM,
        "vision_config": vision_config(source, width),
    });
    Some(FileText::Own { config, width, names })
}

/// `vision_config` of the vision tower next to a language model of `width` channels, with the heads, windows and layers without windows
/// of the official one; null if `source` has no vision tower.
fn vision_config(source: &dyn ParamSource, width: usize) -> Value {
    let shape =
        |key: &str| VISION.iter().find_map(|prefix| source.info(&format!("{prefix}{key}"))).map(|info| info.shape);
    let rows = |key: &str| shape(key)?.first().copied();
    let has_block = |i: &usize| shape(&format!("blocks.{i}.norm1.weight")).is_some();
    let config = || {
        let [channels, colors, frames, side, _] = shape("patch_embed.proj.weight")?.try_into().ok()?;
        Some(json!({
            "depth": (0..MAX_BLOCKS).take_while(has_block).count(),
            "hidden_size": channels,
            "in_channels": colors,
            "intermediate_size": rows("blocks.0.mlp.gate_proj.weight")?,
            "num_heads": channels / VISION_HEAD_DIM,
            "out_hidden_size": width,
            "patch_size": side,
            "temporal_patch_size": frames,
        }))
    };
    config().unwrap_or(Value::Null)
}

/// `config.json` of the `QwenImageTransformer2DModel` whose tensors `source` has. `None` for another network.
fn transformer_config(source: &dyn ParamSource) -> Option<Value> {
    let shape = |key: &str| source.info(key).map(|info| info.shape);
    shape("transformer_blocks.0.img_mod.1.weight")?;
    let [width, in_channels] = shape("img_in.weight")?.try_into().ok()?;
    let context = shape("txt_norm.weight")?.first().copied()?;
    let head_dim = shape("transformer_blocks.0.attn.norm_q.weight")?.first().copied().filter(|&size| size > 0)?;
    let has_block = |i: &usize| shape(&format!("transformer_blocks.{i}.attn.to_q.weight")).is_some();
    Some(json!({
        "_class_name": "QwenImageTransformer2DModel",
        "attention_head_dim": head_dim,
        "axes_dims_rope": flux_axes(head_dim),
        "in_channels": in_channels,
        "joint_attention_dim": context,
        "num_attention_heads": width / head_dim,
        "num_layers": (0..MAX_BLOCKS).take_while(has_block).count(),
        "out_channels": in_channels / (TOKEN * TOKEN),
        "patch_size": TOKEN,
        "zero_cond_t": source.info(ZERO_TIMESTEP).is_some(),
    }))
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};
    use kiln_qwen::{QwenConfig, QwenEncoder};
    use kiln_weights::ldm::Named;
    use kiln_weights::{MapSource, RandomSource, mismatches};

    use super::*;

    #[test]
    fn a_file_has_the_configuration_of_its_transformer() {
        let json = r#"{"in_channels": 16, "out_channels": 4, "num_layers": 3, "attention_head_dim": 16,
            "num_attention_heads": 2, "joint_attention_dim": 24, "axes_dims_rope": [2, 6, 8]}"#;
        let config = QwenImageConfig::from_json(json).unwrap();
        let network = config.build();
        let source = RandomSource::new(network.segments(), 1);
        let found = QWEN_IMAGE.read_denoiser(&source).unwrap();
        assert_eq!(QwenImageConfig::from_json(&found.config.to_string()).unwrap(), config);
        assert!(QWEN_IMAGE.denoiser_marks().iter().all(|mark| mark.prefix(&source.keys()).is_some()));
        let official = QwenImageConfig::from_json("{}").unwrap().build();
        let found = QWEN_IMAGE.read_denoiser(&RandomSource::new(official.segments(), 1)).unwrap();
        assert_eq!(
            QwenImageConfig::from_json(&found.config.to_string()).unwrap(),
            QwenImageConfig::from_json("{}").unwrap()
        );
    }

    fn language_model() -> (QwenConfig, QwenEncoder) {
        let json = r#"{"model_type": "qwen2_5_vl", "vocab_size": 40, "hidden_size": 256, "intermediate_size": 48,
            "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}"#;
        let config = QwenConfig::from_json(json).unwrap();
        let encoder = QwenEncoder::normed(config.clone()).unwrap();
        (config, encoder)
    }

    #[test]
    fn a_file_has_the_configuration_of_its_language_model() {
        let (config, encoder) = language_model();
        let source = RandomSource::new(encoder.segments(), 1);
        for kind in [ComponentKind::LanguageModel, ComponentKind::T5] {
            let found = QWEN_IMAGE.read_text(kind, &source).and_then(|text| text.config());
            let found = found.map(|found| QwenConfig::from_json(&found.to_string()).unwrap());
            assert_eq!(found, (kind == ComponentKind::LanguageModel).then(|| config.clone()));
        }
    }

    #[test]
    fn a_file_has_the_configuration_of_its_vision_tower() {
        let json = r#"{"model_type": "qwen2_5_vl", "vocab_size": 40, "hidden_size": 256, "intermediate_size": 48,
            "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vision_config": {"depth": 3,
            "hidden_size": 160, "num_heads": 2, "intermediate_size": 36, "out_hidden_size": 256}}"#;
        let config = QwenConfig::from_json(json).unwrap();
        let encoder = QwenEncoder::seeing(config.clone()).unwrap();
        let source = RandomSource::new(encoder.segments(), 1);
        let tensor = |key: String| {
            let values = source.data(&key).unwrap().unwrap();
            let is_kernel = key == "visual.patch_embed.proj.weight";
            let shape = if is_kernel { vec![160, 3, 2, 14, 14] } else { values.info.shape.clone() };
            let tensor = Tensor::from_vec(values.to_f32().unwrap(), shape, &Device::Cpu).unwrap();
            (key, tensor)
        };
        let file: MapSource = source.keys().into_iter().map(tensor).collect();
        let found = QWEN_IMAGE.read_text(ComponentKind::LanguageModel, &file).and_then(|text| text.config()).unwrap();
        assert_eq!(QwenConfig::from_json(&found.to_string()).unwrap(), config);
    }

    #[test]
    fn editing_models_are_known_by_their_class() {
        let traits = |class| ModelTraits { class, ..ModelTraits::default() };
        let most = |class| QWEN_IMAGE.references_of(&traits(class)).map(|references| references.most);
        assert_eq!(most("QwenImageEditPipeline"), Some(1));
        assert_eq!(most("QwenImageEditPlusPipeline"), Some(usize::MAX));
        assert_eq!(most("QwenImagePipeline"), None);
        let defaults = QWEN_IMAGE.defaults(&traits("QwenImageEditPlusPipeline"));
        assert!(defaults.edits && defaults.steps == 40);
    }

    #[test]
    fn names_of_gguf_are_those_of_its_language_model() {
        let (config, encoder) = language_model();
        let (source, names) = (RandomSource::new(encoder.segments(), 1), QwenDialect::Gguf.names());
        let tensor = |key: String| {
            let values = source.data(&key).unwrap().unwrap();
            let tensor = Tensor::from_vec(values.to_f32().unwrap(), values.info.shape, &Device::Cpu).unwrap();
            (names.place(&key).unwrap().name, tensor)
        };
        let file: MapSource = source.keys().into_iter().map(tensor).collect();
        let found = QWEN_IMAGE.read_text(ComponentKind::LanguageModel, &file).unwrap();
        assert_eq!(QwenConfig::from_json(&found.config().unwrap().to_string()).unwrap(), config);
        assert!(FileText::read(ComponentKind::LanguageModel, &file).is_none(), "Qwen3 has no biases");
        let named = Named::new(file, found.names());
        assert!(mismatches(encoder.segments(), &named).is_empty() && named.unknown().is_empty());
    }

    #[test]
    fn defaults_are_those_of_the_authors() {
        let defaults = QWEN_IMAGE.defaults(&ModelTraits::default());
        assert_eq!((defaults.steps, defaults.cfg_scale, defaults.strength), (50, 4.0, 0.6));
        assert_eq!(QWEN_IMAGE.restored_norm(), Some(2));
    }
}
