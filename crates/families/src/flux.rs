//! FLUX.1 and Chroma, which has its blocks without modulation weights. Recognized, not run.

use kiln_scheduler::{Convention, FlowGrid};

use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::family::Family;
use crate::flow::FlowRules;
use crate::mark::Mark;

/// FLUX.1: dev, schnell, Krea, Kontext, Fill and the control models.
pub(crate) static FLUX: &dyn Family = &Flux;
/// Chroma.
pub(crate) static CHROMA: &dyn Family = &Chroma;

struct Flux;

/// Blocks with the names of the authors.
const BLOCKS: Mark =
    Mark::names("a FLUX.1 transformer", &["double_blocks.0.img_attn.qkv.weight", "single_blocks.0.linear1.weight"]);
/// Blocks with diffusers' names.
const DIFFUSERS: Mark =
    Mark::names("a FLUX.1 transformer", &["single_transformer_blocks.0.attn.to_q.weight", "x_embedder.weight"]);
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

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("FluxFill", "a FLUX.1 model (Fill, for inpainting)"),
            ("FluxControlNetModel", "a FLUX.1 ControlNet"),
            ("FluxMultiControlNetModel", "a FLUX.1 ControlNet"),
            ("FluxControlPipeline", "a FLUX.1 model (with a control image)"),
            ("FluxControlImg2ImgPipeline", "a FLUX.1 model (with a control image)"),
            ("FluxControlInpaintPipeline", "a FLUX.1 model (with a control image)"),
            ("FluxTransformer", "a FLUX.1 transformer"),
            ("Flux", "a FLUX.1 model"),
        ]
    }

    fn marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[
            Mark::part("a FLUX.1 ControlNet", &["controlnet_single_blocks."]),
            Mark::names("a FLUX.1 ControlNet", &["controlnet_x_embedder.weight", "controlnet_blocks.0.weight"]),
            // XLabs' names
            Mark::names("a FLUX.1 ControlNet", &["controlnet_blocks.0.weight", "double_blocks.0.img_attn.qkv.weight"]),
            Mark { label: FILL, ..BLOCKS.with_columns("img_in.weight", FILL_COLUMNS) },
            Mark { label: CONTROL, ..BLOCKS.with_columns("img_in.weight", CONTROL_COLUMNS) },
            Mark { label: FILL, ..DIFFUSERS.with_columns("x_embedder.weight", FILL_COLUMNS) },
            Mark { label: CONTROL, ..DIFFUSERS.with_columns("x_embedder.weight", CONTROL_COLUMNS) },
            BLOCKS,
            Mark::names("a FLUX.1 transformer", &["double_blocks.0.img_attn.norm.key_norm.scale"]),
            Mark::names("a FLUX.1 transformer", &["double_blocks.0.img_attn.norm.key_norm.weight"]),
            DIFFUSERS,
        ];
        MARKS
    }

    /// The authors' model cards. schnell is the model without a guidance input.
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

struct Chroma;

impl Family for Chroma {
    fn id(&self) -> &'static str {
        "chroma"
    }

    fn label(&self) -> &'static str {
        "Chroma"
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[("ChromaTransformer", "a Chroma transformer"), ("Chroma", "a Chroma model")]
    }

    fn marks(&self) -> &'static [Mark] {
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
