//! FLUX.2: klein and dev, with a language model as the text encoder. Recognized, not run.

use crate::family::Family;
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

    fn lora_marks(&self) -> &'static [&'static str] {
        &["double_stream_modulation", "to_qkv_mlp_proj"]
    }
}
