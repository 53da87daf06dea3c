//! Names of models whose text encoder is Qwen3, and of Qwen3: every declared tensor to a stored one and back.

use safetensors::Dtype;

use super::tests::{declared, linear, round_trip};
use super::*;
use crate::lora::{flux2_names, z_image_names};

type Shapes = Vec<(String, Vec<usize>)>;

fn add(shapes: &mut Shapes, name: &str, shape: &[usize]) {
    shapes.push((format!("{name}.weight"), shape.to_vec()));
}

fn z_image(shape: &ZImageShape) -> Shapes {
    let (d, mut shapes) = (shape.width, Shapes::new());
    for pad in ["x_pad_token", "cap_pad_token"] {
        shapes.push((pad.into(), vec![1, d]));
    }
    add(&mut shapes, "cap_embedder.0", &[shape.context_dim]);
    let layers = [
        ("all_x_embedder.2-1", d, shape.in_channels),
        ("all_final_layer.2-1.linear", shape.in_channels, d),
        ("all_final_layer.2-1.adaLN_modulation.1", d, d),
        ("cap_embedder.1", d, shape.context_dim),
        ("t_embedder.mlp.0", 32, 16),
        ("t_embedder.mlp.2", d, 32),
    ];
    linear(&mut shapes, &layers.map(|(name, n, k)| (name.to_string(), n, k)));
    let kinds =
        [("noise_refiner", shape.refiner_layers), ("context_refiner", shape.refiner_layers), ("layers", shape.layers)];
    for (kind, count) in kinds {
        for i in 0..count {
            let path = |name: &str| format!("{kind}.{i}.{name}");
            for name in ["attention.to_q", "attention.to_k", "attention.to_v", "attention.to_out.0", "feed_forward.w1"]
            {
                add(&mut shapes, &path(name), &[d, d]);
            }
            for name in ["attention.norm_q", "attention.norm_k"] {
                add(&mut shapes, &path(name), &[shape.head_dim]);
            }
            add(&mut shapes, &path("attention_norm1"), &[d]);
        }
    }
    shapes
}

#[test]
fn tensors_of_z_image_map_both_ways() {
    for dialect in [ZImageDialect::Authors, ZImageDialect::Diffusers] {
        let shape = ZImageShape {
            dialect,
            layers: 3,
            refiner_layers: 2,
            width: 64,
            head_dim: 16,
            in_channels: 32,
            context_dim: 96,
        };
        let made = round_trip(&z_image(&shape), Dtype::F16.into(), || shape.names());
        assert_eq!(ZImageShape::read(&made), Some(shape.clone()));
        let fused = made.info("layers.2.attention.qkv.weight").map(|info| info.shape);
        assert_eq!(fused, (dialect == ZImageDialect::Authors).then(|| vec![192, 64]));
    }
}

#[test]
fn tensors_of_flux_2_map_both_ways() {
    for dialect in [Flux2Dialect::Authors, Flux2Dialect::AuthorsWithWeights, Flux2Dialect::Diffusers] {
        let shape = Flux2Shape {
            dialect,
            double_blocks: 2,
            single_blocks: 3,
            width: 64,
            head_dim: 16,
            in_channels: 32,
            context_dim: 96,
            hidden: 192,
            guidance: dialect == Flux2Dialect::Authors,
        };
        let (d, hidden, mut shapes) = (64, 192, Shapes::new());
        for (name, n, k) in [
            ("x_embedder", d, 32),
            ("context_embedder", d, 96),
            ("time_guidance_embed.timestep_embedder.linear_1", d, 16),
            ("time_guidance_embed.timestep_embedder.linear_2", d, d),
            ("double_stream_modulation_img.linear", 6 * d, d),
            ("double_stream_modulation_txt.linear", 6 * d, d),
            ("single_stream_modulation.linear", 3 * d, d),
            ("norm_out.linear", 2 * d, d),
            ("proj_out", 32, d),
        ] {
            add(&mut shapes, name, &[n, k]);
        }
        if shape.guidance {
            add(&mut shapes, "time_guidance_embed.guidance_embedder.linear_1", &[d, 16]);
        }
        for i in 0..shape.double_blocks {
            let path = |name: &str| format!("transformer_blocks.{i}.{name}");
            for name in ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"] {
                add(&mut shapes, &path(&format!("attn.{name}")), &[d, d]);
            }
            for name in ["norm_q", "norm_k", "norm_added_q", "norm_added_k"] {
                add(&mut shapes, &path(&format!("attn.{name}")), &[16]);
            }
            for name in ["ff", "ff_context"] {
                add(&mut shapes, &path(&format!("{name}.linear_in")), &[2 * hidden, d]);
                add(&mut shapes, &path(&format!("{name}.linear_out")), &[d, hidden]);
            }
        }
        for i in 0..shape.single_blocks {
            let path = |name: &str| format!("single_transformer_blocks.{i}.attn.{name}");
            add(&mut shapes, &path("to_qkv_mlp_proj"), &[3 * d + 2 * hidden, d]);
            add(&mut shapes, &path("to_out"), &[d, d + hidden]);
            ["norm_q", "norm_k"].into_iter().for_each(|name| add(&mut shapes, &path(name), &[16]));
        }
        let made = round_trip(&shapes, Dtype::F16.into(), || shape.names());
        assert_eq!(Flux2Shape::read(&made), Some(shape));
        assert_eq!(FluxShape::read(&made), None, "FLUX.1");
    }
}

#[test]
fn tensors_of_qwen3_map_both_ways() {
    let shape = QwenShape {
        dialect: QwenDialect::Gguf,
        vocab_size: 100,
        width: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        hidden: 96,
        layers: 3,
    };
    let mut shapes = Shapes::new();
    add(&mut shapes, "model.embed_tokens", &[100, 64]);
    add(&mut shapes, "model.norm", &[64]);
    for i in 0..shape.layers {
        for (name, dims) in [
            ("self_attn.q_proj", &[128, 64][..]),
            ("self_attn.k_proj", &[64, 64]),
            ("self_attn.v_proj", &[64, 64]),
            ("self_attn.o_proj", &[64, 128]),
            ("self_attn.q_norm", &[32]),
            ("self_attn.k_norm", &[32]),
            ("input_layernorm", &[64]),
            ("post_attention_layernorm", &[64]),
            ("mlp.gate_proj", &[96, 64]),
            ("mlp.up_proj", &[96, 64]),
            ("mlp.down_proj", &[64, 96]),
        ] {
            add(&mut shapes, &format!("model.layers.{i}.{name}"), dims);
        }
    }
    for dialect in [QwenDialect::Transformers, QwenDialect::Gguf] {
        let made = round_trip(&shapes, Dtype::F16.into(), || dialect.names());
        assert_eq!(QwenShape::read(&made), Some(QwenShape { dialect, ..shape.clone() }));
    }
    // Qwen2 has biases instead of norms.
    shapes.retain(|(name, _)| !name.ends_with("q_norm.weight") && !name.ends_with("k_norm.weight"));
    for i in 0..shape.layers {
        let bias = |(name, rows): (&str, usize)| (format!("model.layers.{i}.self_attn.{name}.bias"), vec![rows]);
        shapes.extend([("q_proj", 128), ("k_proj", 64), ("v_proj", 64)].map(bias));
    }
    let made = round_trip(&shapes, Dtype::F16.into(), || QwenDialect::Gguf.names());
    assert_eq!(made.info("blk.2.attn_k.bias").map(|info| info.shape), Some(vec![64]));
    for source in [made, declared(&shapes, Dtype::F16.into())] {
        assert_eq!(QwenShape::read(&source), None, "Qwen2");
    }
}

#[test]
fn loras_name_fused_and_split_projections() {
    let names = |found: Vec<(&str, Place)>| found.into_iter().map(|(_, place)| place.name).collect::<Vec<_>>();
    let path = ["layers.0.attention.to_k"];
    let expected = ["layers.0.attention.qkv", "layers.0.attention.to_k", "layers.0.attention.to.k"];
    assert_eq!(names(z_image_names(&path)), expected);
    let path = ["single_transformer_blocks.0.attn.to_out"];
    assert_eq!(names(flux2_names(&path)), ["single_blocks.0.linear2", "single_transformer_blocks.0.attn.to_out"]);
}
