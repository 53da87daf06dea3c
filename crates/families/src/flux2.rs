//! FLUX.2: klein and dev, with a language model as the text encoder. Recognized, not run.

use kiln_scheduler::{Convention, FlowGrid, FlowMu};

use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::family::Family;
use crate::flow::FlowRules;
use crate::mark::Mark;

/// FLUX.2.
pub(crate) static FLUX2: &dyn Family = &Flux2;

struct Flux2;

impl Family for Flux2 {
    fn id(&self) -> &'static str {
        "flux2"
    }

    fn label(&self) -> &'static str {
        "FLUX.2"
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("AutoencoderKLFlux2", "a FLUX.2 autoencoder"),
            ("Flux2Transformer", "a FLUX.2 transformer"),
            ("Flux2", "a FLUX.2 model"),
        ]
    }

    fn marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[
            Mark::names("a FLUX.2 transformer", &["double_stream_modulation_img.lin.weight"]),
            Mark::names("a FLUX.2 transformer", &["double_stream_modulation_img.linear.weight"]),
            Mark::names("a FLUX.2 autoencoder", &["bn.running_mean", "decoder.conv_in.weight"]),
        ];
        MARKS
    }

    fn defaults(&self, model: &ModelTraits<'_>) -> FamilyDefaults {
        let is_distilled = model.is_distilled.unwrap_or_else(|| !model.is_named("base"));
        let defaults = if is_distilled { FamilyDefaults::new(4, 1.0) } else { FamilyDefaults::new(50, 4.0) };
        defaults.with_strengths(0.6, 0.8)
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
