//! Stable Diffusion 3 and 3.5: CLIP-L, CLIP-G and T5. Recognized, not run.

use kiln_scheduler::{Convention, FlowGrid};

use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::family::Family;
use crate::flow::FlowRules;
use crate::mark::Mark;

/// Stable Diffusion 3 and 3.5.
pub(crate) static SD3: &dyn Family = &Sd3;

struct Sd3;

impl Family for Sd3 {
    fn id(&self) -> &'static str {
        "sd3"
    }

    fn label(&self) -> &'static str {
        "Stable Diffusion 3"
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("StableDiffusion3", "a Stable Diffusion 3 model"),
            ("SD3ControlNet", "a Stable Diffusion 3 ControlNet"),
            ("SD3Transformer", "a Stable Diffusion 3 transformer"),
            ("SD3", "a Stable Diffusion 3 model"),
        ]
    }

    fn marks(&self) -> &'static [Mark] {
        const CONTROL: &str = "a Stable Diffusion 3 ControlNet";
        const TRANSFORMER: &str = "a Stable Diffusion 3 transformer";
        const MARKS: &[Mark] = &[
            Mark::names(CONTROL, &["controlnet_blocks.0.weight", "pos_embed_input.proj.weight"]),
            Mark::names(CONTROL, &["controlnet_blocks.0.weight", "transformer_blocks.0.attn.qkv.weight"]),
            Mark::names(TRANSFORMER, &["joint_blocks.0.x_block.attn.qkv.weight"]),
            Mark::names(TRANSFORMER, &["joint_blocks.0.context_block.attn.qkv.weight"]),
            Mark::names(TRANSFORMER, &["transformer_blocks.0.attn.add_k_proj.weight", "pos_embed.proj.weight"]),
        ];
        MARKS
    }

    /// The authors' model cards; without a name that tells, those of Stable Diffusion 3 medium.
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
