//! The configuration of the autoencoder of a model in one file.

use kiln_families::{DerivedConfig, FamilyRef};
use kiln_weights::ldm::{VaeDialect, VaeShape};
use serde_json::{Value, json};

/// The class of diffusers of an autoencoder.
pub(super) fn vae_class(vae: &VaeShape) -> &'static str {
    match vae.dialect {
        VaeDialect::Frames | VaeDialect::Wan => "AutoencoderKLQwenImage",
        VaeDialect::Ldm | VaeDialect::Diffusers if vae.patches => "AutoencoderKLFlux2",
        VaeDialect::Ldm | VaeDialect::Diffusers => "AutoencoderKL",
    }
}

/// Its `config.json` in a model of `family`.
pub(super) fn vae_config(vae: &VaeShape, family: FamilyRef) -> Value {
    if matches!(vae.dialect, VaeDialect::Frames | VaeDialect::Wan) {
        return frames_config(vae);
    }
    let DerivedConfig { scaling_factor, shift_factor, vae_sample_size, force_upcast, .. } =
        family.derived_config().unwrap_or_default();
    let types = |name: &'static str| vec![name; vae.channels.len()];
    let mut config = json!({
        "_class_name": vae_class(vae),
        "act_fn": "silu",
        "block_out_channels": vae.channels,
        "down_block_types": types("DownEncoderBlock2D"),
        "in_channels": vae.image_channels,
        "latent_channels": vae.latent_channels,
        "layers_per_block": vae.layers,
        "norm_num_groups": 32,
        "out_channels": vae.image_channels,
        "sample_size": vae_sample_size,
        "scaling_factor": scaling_factor,
        "up_block_types": types("UpDecoderBlock2D"),
    });
    if let Some(shift) = shift_factor {
        config["shift_factor"] = json!(shift);
    }
    if force_upcast {
        config["force_upcast"] = json!(true);
    }
    for (key, there) in [
        ("use_quant_conv", vae.quant_conv),
        ("use_post_quant_conv", vae.post_quant_conv),
        ("mid_block_add_attention", vae.attention),
    ] {
        if !there {
            config[key] = json!(false);
        }
    }
    config
}

/// The `config.json` of an autoencoder of videos. The statistics of its latents are those of the official one.
fn frames_config(vae: &VaeShape) -> Value {
    let base_dim = vae.channels.first().copied().unwrap_or_default();
    let factors: Vec<usize> = vae.channels.iter().map(|channels| channels / base_dim.max(1)).collect();
    json!({
        "_class_name": vae_class(vae),
        "base_dim": base_dim,
        "dim_mult": factors,
        "input_channels": vae.image_channels,
        "num_res_blocks": vae.layers,
        "z_dim": vae.latent_channels,
    })
}
