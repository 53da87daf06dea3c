//! The configurations of diffusion transformers, T5 and Qwen3 in one file, in the form of diffusers and transformers.
//!
//! Values that tensor shapes do not show are those of the official models.

use kiln_weights::ldm::{Approximator, Flux2Shape, FluxShape, QwenShape, Sd3Shape, T5Shape, ZImageShape};
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

/// `config.json` of `Flux2Transformer2DModel`.
pub fn flux2_config(shape: &Flux2Shape) -> Value {
    let axis = shape.head_dim / 4;
    json!({
        "_class_name": "Flux2Transformer2DModel",
        "attention_head_dim": shape.head_dim,
        "axes_dims_rope": [axis, axis, axis, axis],
        "guidance_embeds": shape.guidance,
        "in_channels": shape.in_channels,
        "joint_attention_dim": shape.context_dim,
        "mlp_ratio": shape.hidden as f64 / shape.width.max(1) as f64,
        "num_attention_heads": shape.width / shape.head_dim.max(1),
        "num_layers": shape.double_blocks,
        "num_single_layers": shape.single_blocks,
        "patch_size": 1,
        "rope_theta": 2000,
    })
}

/// `config.json` of `ZImageTransformer2DModel`.
pub fn z_image_config(shape: &ZImageShape) -> Value {
    let heads = shape.width / shape.head_dim.max(1);
    // A quarter of a head is the text's axis in the official model.
    let text = shape.head_dim / 8 * 2;
    let rows = (shape.head_dim - text) / 4 * 2;
    json!({
        "_class_name": "ZImageTransformer2DModel",
        "all_f_patch_size": [1],
        "all_patch_size": [2],
        "axes_dims": [text, rows, shape.head_dim - text - rows],
        "cap_feat_dim": shape.context_dim,
        "dim": shape.width,
        "in_channels": shape.in_channels / 4,
        "n_heads": heads,
        "n_kv_heads": heads,
        "n_layers": shape.layers,
        "n_refiner_layers": shape.refiner_layers,
        "norm_eps": 1e-5,
        "qk_norm": true,
        "rope_theta": 256.0,
        "t_scale": 1000.0,
    })
}

/// `config.json` of transformers' `Qwen3ForCausalLM`.
pub fn qwen_config(shape: &QwenShape) -> Value {
    json!({
        "architectures": ["Qwen3ForCausalLM"],
        "attention_bias": false,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.width,
        "intermediate_size": shape.hidden,
        "model_type": "qwen3",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e6,
        "tie_word_embeddings": true,
        "vocab_size": shape.vocab_size,
    })
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
