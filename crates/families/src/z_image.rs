//! Z-Image, which has the blocks of Lumina 2 with a width of its own and learned pads. Recognized, not run.

use crate::family::Family;
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

    fn lora_marks(&self) -> &'static [&'static str] {
        &["diffusion_model.layers.0.attention.", "transformer.layers.0.attention.", "lora_unet_layers_0_attention_"]
    }
}
