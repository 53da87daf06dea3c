//! FLUX.1: CLIP-L and T5, and a transformer of double and single blocks.

use std::sync::Arc;

use kiln_dit::FluxConfig;
use kiln_network::text::TextStage;
use kiln_network::{ControlConfig, DenoiserConfig, ExtraChannels};
use kiln_scheduler::{Convention, FlowGrid};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{FluxDialect, FluxShape, Names};
use serde_json::{Value, json};

use crate::clip_unet::{clip_encoder, without_projection};
use crate::component::{Component, ComponentKind};
use crate::control::{self, FLUX_CONTROL, FileControl, ReferenceSizes};
use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::error::Result;
use crate::family::{DerivedConfig, Family};
use crate::file_networks::FileDenoiser;
use crate::flow::{FlowRules, dynamic_scheduler};
use crate::lora;
use crate::mark::Mark;
use crate::sd3::CLIP_L;
use crate::text::ClipT5Text;
use crate::text_part::{TextPart, t5_part};
use crate::transformer_configs::flux_config;
use crate::variant::Variant;

/// FLUX.1: dev, schnell, Krea, Kontext, Fill and the control models.
pub(crate) static FLUX: &dyn Family = &Flux;

/// T5's tokens if a request does not say how many: of models with a guidance input, and of schnell.
const MAX_LENGTHS: [usize; 2] = [512, 256];

const DEV: Variant = Variant { id: "flux_dev", label: "FLUX.1 dev" };
const SCHNELL: Variant = Variant { id: "flux_schnell", label: "FLUX.1 schnell" };
const FILL: Variant = Variant { id: "flux_fill", label: "FLUX.1 Fill" };
const CONTROL: Variant = Variant { id: "flux_control", label: "FLUX.1 with a control image (Depth or Canny)" };
/// The class of models that fill what a mask marks.
const FILL_CLASS: &str = "FluxFillPipeline";

/// The autoencoder of FLUX.1 and of families that have it too.
pub(crate) const AUTOENCODER: DerivedConfig = DerivedConfig {
    scaling_factor: 0.3611,
    shift_factor: Some(0.1159),
    vae_sample_size: 1024,
    force_upcast: false,
    gguf: "",
};

struct Flux;

/// Blocks with the names of the authors.
const BLOCKS: Mark =
    Mark::names("a FLUX.1 transformer", &["double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight"]);
/// Blocks with diffusers' names.
const DIFFUSERS: Mark =
    Mark::names("a FLUX.1 transformer", &["single_transformer_blocks.0.attn.to_q.weight", "x_embedder.weight"]);
/// The sizes that Kontext was trained with (`PREFERRED_KONTEXT_RESOLUTIONS` of diffusers).
pub const KONTEXT_SIZES: [[usize; 2]; 17] = [
    [672, 1568],
    [688, 1504],
    [720, 1456],
    [752, 1392],
    [800, 1328],
    [832, 1248],
    [880, 1184],
    [944, 1104],
    [1024, 1024],
    [1104, 944],
    [1184, 880],
    [1248, 832],
    [1328, 800],
    [1392, 752],
    [1456, 720],
    [1504, 688],
    [1568, 672],
];
/// The classes of models with a control image.
const CONTROL_CLASSES: [&str; 3] = ["FluxControlPipeline", "FluxControlImg2ImgPipeline", "FluxControlInpaintPipeline"];

impl Family for Flux {
    fn id(&self) -> &'static str {
        "flux"
    }

    fn label(&self) -> &'static str {
        "FLUX.1"
    }

    fn runs(&self) -> bool {
        true
    }

    fn classes(&self) -> &'static [&'static str] {
        &[
            "FluxPipeline",
            "FluxImg2ImgPipeline",
            "FluxInpaintPipeline",
            "FluxControlNetPipeline",
            "FluxControlNetImg2ImgPipeline",
            "FluxControlNetInpaintPipeline",
            "FluxKontextPipeline",
            FILL_CLASS,
            CONTROL_CLASSES[0],
            CONTROL_CLASSES[1],
            CONTROL_CLASSES[2],
        ]
    }

    fn components(&self) -> &'static [Component] {
        const ALL: &[Component] = &[
            CLIP_L,
            Component {
                folder: "text_encoder_2",
                kind: ComponentKind::T5,
                tokenizer: Some("tokenizer_2"),
                prefixes: &["text_encoders.t5xxl.transformer.", "text_encoder_2.", ""],
                lora: Some(lora::TEXT_ENCODER_2_T5),
            },
            Component::transformer(lora::TRANSFORMER_FLUX),
            Component::VAE,
        ];
        ALL
    }

    fn denoiser(&self, json: &str, _pooled: Option<usize>) -> Result<Arc<dyn DenoiserConfig>> {
        Ok(Arc::new(FluxConfig::from_json(json)?))
    }

    fn control_classes(&self) -> &'static [(&'static str, &'static str)] {
        &[("FluxControlNetModel", FLUX_CONTROL)]
    }

    fn control(&self, _class: &str, json: &str) -> Result<Arc<dyn ControlConfig>> {
        control::flux_control(json)
    }

    fn read_control(&self, source: &dyn ParamSource) -> Option<Result<FileControl>> {
        control::read_flux_control(source)
    }

    fn text_stage(&self, parts: &[TextPart], denoiser: &dyn DenoiserConfig) -> Result<Box<dyn TextStage>> {
        let part = |folder| parts.iter().find(|part| part.component.folder == folder);
        // Some files have a projection of the pooled vector, which FLUX.1 does not take.
        let unprojected = |part: &TextPart| TextPart { config: without_projection(&part.config), ..part.clone() };
        let clip = part("text_encoder").map(|part| clip_encoder(self.label(), &unprojected(part))).transpose()?;
        let t5 = part("text_encoder_2").map(|part| t5_part(self.label(), part)).transpose()?;
        let length = MAX_LENGTHS[usize::from(!denoiser.takes_guidance())];
        Ok(Box::new(ClipT5Text::flux(clip, t5, denoiser.text(), length)))
    }

    fn denoiser_names(&self, config: &dyn DenoiserConfig) -> Names {
        let blocks = config.own::<FluxConfig>().map(|config| (config.dims.layers, config.dims.single_layers));
        blocks.map(|(double, single)| FluxDialect::Authors.names(double, single)).unwrap_or_default()
    }

    fn read_denoiser(&self, source: &dyn ParamSource) -> Option<FileDenoiser> {
        let shape = FluxShape::read(source).filter(|shape| shape.approximator.is_none())?;
        // Columns of the image input besides the latents': those of a control image, or of a masked image and a mask.
        let variant = match shape.in_channels.saturating_sub(shape.out_channels) {
            0 if shape.guidance => DEV,
            0 => SCHNELL,
            extra if extra == shape.out_channels => CONTROL,
            _ => FILL,
        };
        Some(FileDenoiser { names: Arc::new(shape.names()), config: flux_config(&shape), variant })
    }

    fn derived_config(&self) -> Option<DerivedConfig> {
        Some(DerivedConfig { gguf: "flux", ..AUTOENCODER })
    }

    fn class_of_file(&self, denoiser: &FileDenoiser) -> Option<&'static str> {
        match denoiser.variant {
            FILL => Some(FILL_CLASS),
            CONTROL => CONTROL_CLASSES.first().copied(),
            _ => self.classes().first().copied(),
        }
    }

    /// The shift of dev depends on the size; schnell has none.
    fn derived_scheduler(&self, denoiser: &FileDenoiser) -> Value {
        let mut config = dynamic_scheduler();
        if denoiser.variant == SCHNELL {
            (config["shift"], config["use_dynamic_shifting"]) = (json!(1.0), json!(false));
        }
        config
    }

    fn sample_size(&self) -> usize {
        128
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("FluxMultiControlNetModel", "several FLUX.1 ControlNets in one"),
            ("FluxTransformer", "a FLUX.1 transformer"),
            ("Flux", "a FLUX.1 model"),
        ]
    }

    fn marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[Mark::names(
            "a FLUX.1 ControlNet of XLabs",
            &["controlnet_blocks.0.weight", "double_blocks.0.img_attn.qkv.weight"],
        )];
        MARKS
    }

    fn control_marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[
            Mark::part(FLUX_CONTROL, &["controlnet_single_blocks."]),
            Mark::names(FLUX_CONTROL, &["controlnet_x_embedder.weight", "controlnet_blocks.0.weight"]),
        ];
        MARKS
    }

    fn references(&self) -> Option<ReferenceSizes> {
        Some(ReferenceSizes::Nearest(&KONTEXT_SIZES))
    }

    fn denoiser_marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[
            BLOCKS,
            Mark::names("a FLUX.1 transformer", &["double_blocks.0.img_attn.norm.key_norm.scale"]),
            Mark::names("a FLUX.1 transformer", &["double_blocks.0.img_attn.norm.key_norm.weight"]),
            DIFFUSERS,
        ];
        MARKS
    }

    /// The authors' pages of the models. schnell is the model without a guidance input.
    fn defaults(&self, model: &ModelTraits<'_>) -> FamilyDefaults {
        let is = |class: &str, name: &str| model.class.starts_with(class) || model.is_named(name);
        let is_fill = model.class == FILL_CLASS || model.extra_channels == ExtraChannels::PixelMask;
        let is_control = CONTROL_CLASSES.contains(&model.class) || model.extra_channels == ExtraChannels::Control;
        let dev = |guidance| FamilyDefaults::new(28, 1.0).with_guidance(guidance).with_strengths(0.6, 0.6);
        match () {
            () if !model.takes_guidance => FamilyDefaults::new(4, 1.0).with_strengths(0.6, 0.6),
            () if is_fill => FamilyDefaults::new(50, 1.0).with_guidance(30.0).with_strengths(1.0, 1.0),
            () if is("FluxKontext", "kontext") => dev(2.5).with_edits(),
            () if model.is_named("depth") => dev(10.0),
            () if is_control || model.is_named("canny") => dev(30.0),
            () if model.is_named("krea") => dev(4.5),
            () => dev(3.5),
        }
    }

    /// ComfyUI's `ModelSamplingFlux` and Forge's `PredictionFlux`. For schnell, whose shift is static, ComfyUI has a plain table,
    /// and Forge the exponent 1.
    fn flow(&self, is_dynamic: bool, convention: Convention) -> Option<FlowRules> {
        let rules = FlowRules::of_pipeline(FlowGrid::Even);
        Some(match (is_dynamic, convention) {
            (true, _) => rules.with_table(10_000, 1.15),
            (false, Convention::Automatic1111) => rules.with_table(10_000, 1.0),
            (false, _) => rules,
        })
    }

    fn guides_by_negative_prompt(&self) -> bool {
        true
    }

    fn lora_marks(&self) -> &'static [&'static str] {
        &["double_blocks", "single_blocks", "single_transformer_blocks"]
    }
}

#[cfg(test)]
mod tests {
    use kiln_weights::RandomSource;

    use super::*;

    #[test]
    fn columns_of_the_image_input_tell_variants_of_files() {
        for (columns, variant, class) in
            [(64, DEV, "FluxPipeline"), (384, FILL, "FluxFillPipeline"), (128, CONTROL, "FluxControlPipeline")]
        {
            let config = json!({
                "attention_head_dim": 16,
                "axes_dims_rope": [4, 6, 6],
                "guidance_embeds": true,
                "in_channels": columns,
                "joint_attention_dim": 24,
                "num_attention_heads": 2,
                "num_layers": 1,
                "num_single_layers": 1,
                "out_channels": 64,
                "pooled_projection_dim": 16,
            });
            let network = FLUX.denoiser(&config.to_string(), None).unwrap().build();
            let found = FLUX.read_denoiser(&RandomSource::new(network.segments(), 1)).unwrap();
            assert_eq!((found.variant, FLUX.class_of_file(&found)), (variant, Some(class)));
            assert_eq!(found.config["in_channels"], columns);
        }
    }
}
