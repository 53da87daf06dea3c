//! The configurations of diffusion transformers and of T5 in one file, in the form of diffusers and transformers.
//!
//! Values that tensor shapes do not show are those of the official models.

use kiln_weights::ldm::{Approximator, FluxShape, Sd3Shape, T5Shape};
use serde_json::{Value, json};

/// The side of the latents that Stable Diffusion 3 was trained with.
const SD3_SAMPLE_SIZE: usize = 128;

/// Channels of an attention head of the official FLUX.1, and their axes of rotary positions.
const FLUX_HEAD: (usize, [usize; 3]) = (128, [16, 56, 56]);

/// `config.json` of `SD3Transformer2DModel`.
pub fn sd3_config(shape: &Sd3Shape) -> Value {
    json!({
        "_class_name": "SD3Transformer2DModel",
        "attention_head_dim": shape.head_dim,
        "caption_projection_dim": shape.width,
        "dual_attention_layers": shape.dual_blocks,
        "in_channels": shape.in_channels,
        "joint_attention_dim": shape.context_dim,
        "num_attention_heads": shape.width / shape.head_dim.max(1),
        "num_layers": shape.blocks,
        "out_channels": shape.out_channels,
        "patch_size": shape.patch,
        "pooled_projection_dim": shape.pooled_dim,
        "pos_embed_max_size": shape.positions,
        "qk_norm": shape.qk_norm.then_some("rms_norm"),
        "sample_size": SD3_SAMPLE_SIZE,
    })
}

/// `config.json` of `FluxTransformer2DModel`, or of `ChromaTransformer2DModel` if there is an approximator.
pub fn flux_config(shape: &FluxShape) -> Value {
    let mut config = json!({
        "_class_name": "FluxTransformer2DModel",
        "attention_head_dim": shape.head_dim,
        "axes_dims_rope": flux_axes(shape.head_dim),
        "in_channels": shape.in_channels,
        "joint_attention_dim": shape.context_dim,
        "num_attention_heads": shape.width / shape.head_dim.max(1),
        "num_layers": shape.double_blocks,
        "num_single_layers": shape.single_blocks,
        "out_channels": (shape.out_channels != shape.in_channels).then_some(shape.out_channels),
        "patch_size": 1,
    });
    match shape.approximator {
        Some(Approximator { channels, hidden, layers }) => {
            config["_class_name"] = json!("ChromaTransformer2DModel");
            config["approximator_num_channels"] = json!(channels);
            config["approximator_hidden_dim"] = json!(hidden);
            config["approximator_layers"] = json!(layers);
        }
        None => {
            config["guidance_embeds"] = json!(shape.guidance);
            config["pooled_projection_dim"] = json!(shape.pooled_dim);
        }
    }
    config
}

/// The channels of a head for each axis of rotary positions. They are even. Of unofficial widths the text's axis has an eighth,
/// as in the official one.
pub(crate) fn flux_axes(head_dim: usize) -> [usize; 3] {
    let (official, axes) = FLUX_HEAD;
    if head_dim == official {
        return axes;
    }
    let text = head_dim / 16 * 2;
    let rows = (head_dim - text) / 4 * 2;
    [text, rows, head_dim - text - rows]
}

/// `config.json` of transformers' `T5EncoderModel`, version 1.1.
pub fn t5_config(shape: &T5Shape) -> Value {
    json!({
        "architectures": ["T5EncoderModel"],
        "d_ff": shape.hidden,
        "d_kv": shape.head_dim,
        "d_model": shape.width,
        "dense_act_fn": "gelu_new",
        "eos_token_id": 1,
        "feed_forward_proj": "gated-gelu",
        "is_encoder_decoder": false,
        "is_gated_act": true,
        "layer_norm_epsilon": 1e-6,
        "model_type": "t5",
        "num_heads": shape.heads,
        "num_layers": shape.layers,
        "pad_token_id": 0,
        "relative_attention_max_distance": 128,
        "relative_attention_num_buckets": shape.buckets,
        "vocab_size": shape.vocab_size,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_of_heads_are_even_and_sum_up() {
        assert_eq!(flux_axes(128), [16, 56, 56]);
        for head_dim in [8, 16, 24, 32, 64, 96] {
            let axes = flux_axes(head_dim);
            assert_eq!(axes.iter().sum::<usize>(), head_dim);
            assert!(axes.iter().all(|axis| axis.is_multiple_of(2)), "{axes:?}");
        }
    }
}
