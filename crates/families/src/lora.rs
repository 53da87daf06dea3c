//! The networks of the families in LoRA files: prefixes of layer names.

use kiln_weights::{
    Network, NetworkKind, OriginalNames, flux_names, flux2_names, qwen_image_names, sd3_names, unet_names,
    z_image_names,
};

/// The U-Net of Stable Diffusion 1, 2 and XL.
pub const UNET: Network = Network {
    id: "unet",
    kind: NetworkKind::Denoiser,
    // kohya's scripts for LoRA and OFT, LyCORIS without a trainer
    underscored: &["lora_unet_", "oft_unet_", "lycoris_"],
    omitted: None,
    original: Some(unet_names),
};

/// The first text encoder.
pub const TEXT_ENCODER: Network = Network {
    id: "text_encoder",
    kind: NetworkKind::TextEncoder,
    underscored: &["lora_te_", "lora_te1_", "oft_te_", "oft_te1_", "lycoris_"],
    omitted: Some("text_model."), // transformers 5 has no `text_model.`
    original: None,
};

/// The second text encoder of Stable Diffusion XL.
pub const TEXT_ENCODER_2: Network = Network {
    id: "text_encoder_2",
    kind: NetworkKind::TextEncoder,
    underscored: &["lora_te2_", "oft_te2_"],
    omitted: Some("text_model."),
    original: None,
};

/// The transformer of Stable Diffusion 3.
pub const TRANSFORMER_SD3: Network = transformer(sd3_names);

/// The transformer of FLUX.1.
pub const TRANSFORMER_FLUX: Network = transformer(flux_names);

/// The transformer of FLUX.2.
pub const TRANSFORMER_FLUX2: Network = transformer(flux2_names);

/// The transformer of Z-Image.
pub const TRANSFORMER_Z_IMAGE: Network = transformer(z_image_names);

/// The transformer of Qwen-Image.
pub const TRANSFORMER_QWEN_IMAGE: Network = transformer(qwen_image_names);

/// T5, the third text encoder of Stable Diffusion 3.
pub const TEXT_ENCODER_3: Network = Network {
    id: "text_encoder_3",
    kind: NetworkKind::TextEncoder,
    underscored: &["lora_te3_", "oft_te3_"],
    omitted: None,
    original: None,
};

/// T5, the second text encoder of FLUX.1. kohya's scripts name it as in Stable Diffusion 3, OneTrainer by its place.
pub const TEXT_ENCODER_2_T5: Network =
    Network { id: "text_encoder_2", underscored: &["lora_te3_", "oft_te3_", "lora_te2_"], ..TEXT_ENCODER_3 };

/// T5, the only text encoder of Chroma. OneTrainer names it by its place.
pub const TEXT_ENCODER_T5: Network =
    Network { id: "text_encoder", underscored: &["lora_te3_", "oft_te3_", "lora_te_", "lora_te1_"], ..TEXT_ENCODER_3 };

/// A diffusion transformer, whose authors' code has the names of `original`.
const fn transformer(original: OriginalNames) -> Network {
    Network {
        id: "transformer",
        kind: NetworkKind::Denoiser,
        // kohya's scripts for LoRA and OFT, OneTrainer, LyCORIS without a trainer and in SimpleTuner
        underscored: &["lora_unet_", "oft_unet_", "lora_transformer_", "lycoris_"],
        omitted: None,
        original: Some(original),
    }
}
