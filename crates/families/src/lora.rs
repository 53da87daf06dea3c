//! The networks of the families in LoRA files: prefixes of layer names.

use kiln_weights::{Network, NetworkKind, unet_names};

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
