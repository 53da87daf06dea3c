//! Z-Image, which has the blocks of Lumina 2 with a width of its own and learned pads. Recognized, not run.

use kiln_scheduler::{Convention, FlowGrid};

use crate::defaults::{FamilyDefaults, ModelTraits};
use crate::family::Family;
use crate::flow::FlowRules;
use crate::mark::Mark;

/// Z-Image and Z-Image-Turbo.
pub(crate) static Z_IMAGE: &dyn Family = &ZImage;

struct ZImage;

impl Family for ZImage {
    fn id(&self) -> &'static str {
        "z_image"
    }

    fn label(&self) -> &'static str {
        "Z-Image"
    }

    fn class_prefixes(&self) -> &'static [(&'static str, &'static str)] {
        &[
            ("ZImageTransformer", "a Z-Image transformer"),
            ("ZImageControlNet", "a Z-Image ControlNet"),
            ("ZImage", "a Z-Image model"),
        ]
    }

    fn marks(&self) -> &'static [Mark] {
        const MARKS: &[Mark] = &[Mark::names("a Z-Image transformer", &["cap_pad_token", "cap_embedder.1.weight"])];
        MARKS
    }

    /// Z-Image has a shift of 6, Z-Image-Turbo one of 3.
    fn defaults(&self, model: &ModelTraits<'_>) -> FamilyDefaults {
        let is_base = model.shift.is_some_and(|shift| shift > 4.5);
        let defaults = if is_base { FamilyDefaults::new(50, 6.0) } else { FamilyDefaults::new(9, 1.0) };
        defaults.with_strengths(0.6, 1.0)
    }

    fn flow(&self, _is_dynamic: bool, _convention: Convention) -> Option<FlowRules> {
        Some(FlowRules::of_pipeline(FlowGrid::Even))
    }

    fn lora_marks(&self) -> &'static [&'static str] {
        &["diffusion_model.layers.0.attention.", "transformer.layers.0.attention.", "lora_unet_layers_0_attention_"]
    }
}
