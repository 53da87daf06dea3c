//! FLUX.1 and Chroma, which has its blocks without modulation weights. Recognized, not run.

use crate::family::Family;
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

    fn lora_marks(&self) -> &'static [&'static str] {
        &["distilled_guidance_layer"]
    }
}
