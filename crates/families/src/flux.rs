//! FLUX.1: CLIP-L and T5, and a transformer of double and single blocks.

use std::sync::Arc;

use kiln_dit::FluxConfig;
use kiln_network::text::TextStage;
use kiln_network::{ControlConfig, DenoiserConfig};
use kiln_scheduler::{Convention, FlowGrid};
use kiln_weights::ParamSource;
use kiln_weights::ldm::{FluxDialect, FluxShape, Names};
use serde_json::{Value, json};

use crate::clip_unet::clip_encoder;
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
const KONTEXT_SIZES: [[usize; 2]; 17] = [
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
/// Columns of the image input: 64 latents, 64 of a masked image and 256 of a mask.
const FILL_COLUMNS: usize = 384;
/// Columns of the image input: 64 latents and 64 of a control image.
const CONTROL_COLUMNS: usize = 128;
const FILL: &str = "a FLUX.1 transformer (Fill, for inpainting)";
const CONTROL: &str = "a FLUX.1 transformer (with a control image)";

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
        let clip = part("text_encoder").map(|part| clip_encoder(self.label(), part)).transpose()?;
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
        let variant = if shape.guidance { DEV } else { SCHNELL };
        Some(FileDenoiser { names: Arc::new(shape.names()), config: flux_config(&shape), variant })
    }

    fn derived_config(&self) -> Option<DerivedConfig> {
        Some(DerivedConfig { gguf: "flux", ..AUTOENCODER })
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
            ("FluxFill", "a FLUX.1 model (Fill, for inpainting)"),
            ("FluxMultiControlNetModel", "several FLUX.1 ControlNets in one"),
            ("FluxControlPipeline", "a FLUX.1 model (with a control image)"),
            ("FluxControlImg2ImgPipeline", "a FLUX.1 model (with a control image)"),
            ("FluxControlInpaintPipeline", "a FLUX.1 model (with a control image)"),
            ("FluxTransformer", "a FLUX.1 transformer"),
            ("Flux", "a FLUX.1 model"),
        ]
    }

    fn marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[
            Mark::names(
                "a FLUX.1 ControlNet of XLabs",
                &["controlnet_blocks.0.weight", "double_blocks.0.img_attn.qkv.weight"],
            ),
            Mark { label: FILL, ..BLOCKS.with_columns("img_in.weight", FILL_COLUMNS) },
            Mark { label: CONTROL, ..BLOCKS.with_columns("img_in.weight", CONTROL_COLUMNS) },
            Mark { label: FILL, ..DIFFUSERS.with_columns("x_embedder.weight", FILL_COLUMNS) },
            Mark { label: CONTROL, ..DIFFUSERS.with_columns("x_embedder.weight", CONTROL_COLUMNS) },
        ];
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
        let dev = |guidance| FamilyDefaults::new(28, 1.0).with_guidance(guidance).with_strengths(0.6, 0.6);
        match () {
            () if !model.takes_guidance => FamilyDefaults::new(4, 1.0).with_strengths(0.6, 0.6),
            () if is("FluxFill", "fill") => FamilyDefaults::new(50, 1.0).with_guidance(30.0).with_strengths(1.0, 1.0),
            () if is("FluxKontext", "kontext") => dev(2.5),
            () if model.is_named("depth") => dev(10.0),
            () if CONTROL_CLASSES.contains(&model.class) || model.is_named("canny") => dev(30.0),
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
