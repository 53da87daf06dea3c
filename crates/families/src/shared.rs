//! Networks that several families have: text encoders and autoencoders.

use crate::mark::Mark;

/// Marks of these networks, the most specific first. A file that holds the denoiser of a family as well has that family's
/// mark.
pub(crate) const MARKS: &[Mark] = &[
    Mark::names("an autoencoder of Wan or Qwen-Image", &["decoder.middle.0.residual.0.gamma"]),
    Mark::names("an autoencoder of Wan or Qwen-Image", &["decoder.mid_block.resnets.0.norm1.gamma"]),
    Mark::names("a UMT5 text encoder", &["encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight"]),
    Mark::names(
        "a UMT5 text encoder",
        &["blocks.0.attn.q.weight", "blocks.0.ffn.gate.0.weight", "token_embedding.weight"],
    ),
    Mark::names(
        "a Qwen-VL text encoder",
        &["model.layers.0.self_attn.q_proj.weight", "visual.blocks.0.attn.qkv.weight"],
    ),
    Mark::names("a Gemma text encoder", &["model.layers.0.pre_feedforward_layernorm.weight"]),
    Mark::names("a language model", &["model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.up_proj.weight"]),
    Mark::names("a language model", &["blk.0.attn_q.weight", "token_embd.weight"]), // the names of GGUF
];

/// Marks of text encoders and autoencoders that families of this list run. They have those of [`MARKS`] too.
pub(crate) const RUN: &[Mark] = &[
    Mark::names(
        "a Qwen3 text encoder",
        &["model.layers.0.self_attn.q_norm.weight", "model.layers.0.self_attn.q_proj.weight"],
    ),
    Mark::names("a Qwen3 text encoder", &["blk.0.attn_q_norm.weight", "token_embd.weight"]), // the names of GGUF
    Mark::names(
        "a Qwen-VL text encoder", // the names of GGUF
        &["token_embd.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate.weight"],
    ),
    Mark::names(
        "a Qwen-VL text encoder",
        &["embed_tokens.weight", "layers.0.self_attn.q_proj.bias", "layers.0.mlp.gate_proj.weight"],
    ),
    Mark::names(
        "an autoencoder of Qwen-Image",
        &["decoder.mid_block.resnets.0.norm1.gamma", "decoder.norm_out.gamma", "encoder.down_blocks.0.conv1.weight"],
    ),
    Mark::names(
        "an autoencoder of Qwen-Image", // the names of Wan's authors
        &["decoder.middle.0.residual.0.gamma", "decoder.head.0.gamma", "encoder.downsamples.0.residual.2.weight"],
    ),
];

/// Beginnings of the names of classes in `config.json`.
pub(crate) const CLASSES: &[(&str, &str)] = &[
    ("Qwen2_5_VL", "a Qwen-VL text encoder"),
    ("Qwen3", "a Qwen3 text encoder"),
    ("Qwen", "a Qwen text encoder"),
    ("Gemma", "a Gemma text encoder"),
    ("Llama", "a Llama text encoder"),
    ("Mistral", "a Mistral text encoder"),
    ("T5", "a T5 text encoder"),
    ("UMT5", "a UMT5 text encoder"),
    ("MotionAdapter", "an AnimateDiff motion module"),
];
