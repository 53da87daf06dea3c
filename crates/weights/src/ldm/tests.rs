//! Names of transformers and of T5: every declared tensor to a stored one and back, for plain and quantized types.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};

use kiln_ops::BlockType;
use safetensors::Dtype;

use super::*;
use crate::error::Result;
use crate::source::ParamData;
use crate::stored_type::StoredType;

/// Tensors in memory, of any types.
#[derive(Default)]
pub(super) struct Stored(HashMap<String, (ParamInfo, Vec<u8>)>);

impl ParamSource for Stored {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.0.get(key).map(|(info, _)| info.clone())
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        Ok(self.0.get(key).map(|(info, bytes)| ParamData { info: info.clone(), bytes: Cow::Borrowed(bytes) }))
    }

    fn origin(&self, _key: &str) -> String {
        "memory".into()
    }

    fn keys(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }
}

/// Tensors of these names and shapes with arbitrary bytes: matrices of the type `matrices`, others in F16.
pub(super) fn declared(shapes: &[(String, Vec<usize>)], matrices: StoredType) -> Stored {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    let tensor = |(key, shape): &(String, Vec<usize>)| {
        let dtype = if shape.len() == 2 { matrices } else { Dtype::F16.into() };
        let bytes = (0..dtype.bytes(shape).unwrap()).map(|_| random()).collect();
        (key.clone(), (ParamInfo { shape: shape.clone(), dtype }, bytes))
    };
    Stored(shapes.iter().map(tensor).collect())
}

/// The stored tensors that declared ones make.
fn stored(declared: &Stored, names: &Names) -> Stored {
    let keys = declared.keys();
    let one = |(name, pieces): (String, Vec<(Piece, &str)>)| {
        let (piece, first) = pieces[0];
        let (info, _) = &declared.0[first];
        let part = |key: &str| piece.stored_bytes(declared.0[key].1.as_slice().into(), &declared.0[key].0.shape);
        let bytes = pieces.iter().flat_map(|(_, key)| part(key).into_owned()).collect();
        (name, (ParamInfo { shape: piece.stored_shape(&info.shape), dtype: info.dtype }, bytes))
    };
    Stored(names.stored(keys.iter().map(String::as_str)).into_iter().map(one).collect())
}

/// Checks that the tensors make whole stored ones, from which they are read again. Returns the stored ones.
pub(super) fn round_trip(shapes: &[(String, Vec<usize>)], matrices: StoredType, names: impl Fn() -> Names) -> Stored {
    let declared = declared(shapes, matrices);
    let made = stored(&declared, &names());
    for (name, (info, bytes)) in &made.0 {
        assert_eq!(info.dtype.bytes(&info.shape), Some(bytes.len()), "{name}");
    }
    let named = Named::new(Stored(made.0.clone()), names());
    assert_eq!(named.unknown(), [""; 0]);
    assert_eq!(named.keys().into_iter().collect::<BTreeSet<_>>(), declared.keys().into_iter().collect());
    for (key, (info, bytes)) in &declared.0 {
        let data = named.data(key).unwrap().unwrap_or_else(|| panic!("{key} is not there"));
        assert_eq!((named.info(key).as_ref(), &data.info), (Some(info), info), "{key}");
        assert!(*data.bytes == *bytes.as_slice(), "{key} has other bytes");
    }
    made
}

/// Layers with a bias: `(name, rows, columns)`.
pub(super) fn linear(shapes: &mut Vec<(String, Vec<usize>)>, layers: &[(String, usize, usize)]) {
    for (name, n, k) in layers {
        shapes.extend([(format!("{name}.weight"), vec![*n, *k]), (format!("{name}.bias"), vec![*n])]);
    }
}

fn sd3(shape: &Sd3Shape) -> Vec<(String, Vec<usize>)> {
    let (d, patch) = (shape.width, shape.patch);
    let mut shapes = vec![
        ("pos_embed.proj.weight".to_string(), vec![d, shape.in_channels, patch, patch]),
        ("pos_embed.proj.bias".into(), vec![d]),
        ("pos_embed.pos_embed".into(), vec![1, shape.positions * shape.positions, d]),
    ];
    let embed = |name: &str| format!("time_text_embed.{name}");
    let mut layers = vec![
        (embed("timestep_embedder.linear_1"), d, 256),
        (embed("timestep_embedder.linear_2"), d, d),
        (embed("text_embedder.linear_1"), d, shape.pooled_dim),
        (embed("text_embedder.linear_2"), d, d),
        ("context_embedder".into(), d, shape.context_dim),
        ("norm_out.linear".into(), 2 * d, d),
        ("proj_out".into(), shape.out_channels * patch * patch, d),
    ];
    for i in 0..shape.blocks {
        let (is_last, is_dual) = (i + 1 == shape.blocks, shape.dual_blocks.contains(&i));
        let mut add = |name: &str, n, k| layers.push((format!("transformer_blocks.{i}.{name}"), n, k));
        add("norm1.linear", if is_dual { 9 * d } else { 6 * d }, d);
        add("norm1_context.linear", if is_last { 2 * d } else { 6 * d }, d);
        for name in ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj"] {
            add(&format!("attn.{name}"), d, d);
        }
        let texts: &[&str] = if is_last { &["ff"] } else { &["ff", "ff_context"] };
        for ff in texts {
            add(&format!("{ff}.net.0.proj"), 4 * d, d);
            add(&format!("{ff}.net.2"), d, 4 * d);
        }
        if !is_last {
            add("attn.to_add_out", d, d);
        }
        if is_dual {
            ["to_q", "to_k", "to_v", "to_out.0"].into_iter().for_each(|name| add(&format!("attn2.{name}"), d, d));
        }
        let mut norms: Vec<&str> = Vec::new();
        if shape.qk_norm {
            norms.extend(["attn.norm_q", "attn.norm_k", "attn.norm_added_q", "attn.norm_added_k"]);
            norms.extend(if is_dual { &["attn2.norm_q", "attn2.norm_k"][..] } else { &[] });
        }
        let norm = |name: &&str| (format!("transformer_blocks.{i}.{name}.weight"), vec![shape.head_dim]);
        shapes.extend(norms.iter().map(norm));
    }
    linear(&mut shapes, &layers);
    shapes
}

#[test]
fn tensors_of_stable_diffusion_3_map_both_ways() {
    let medium = Sd3Shape {
        dialect: Sd3Dialect::Authors,
        blocks: 3,
        width: 128,
        head_dim: 64,
        qk_norm: false,
        dual_blocks: vec![],
        in_channels: 16,
        out_channels: 16,
        patch: 2,
        context_dim: 96,
        pooled_dim: 32,
        positions: 5,
    };
    let newer = Sd3Shape {
        blocks: 12,
        qk_norm: true,
        head_dim: 32,
        dual_blocks: vec![0, 1, 10],
        in_channels: 17,
        ..medium.clone()
    };
    let large = Sd3Shape { width: 256, context_dim: 256, pooled_dim: 512, ..medium.clone() };
    for (shape, matrices) in [
        (medium.clone(), Dtype::F16.into()),
        (medium, StoredType::Blocks(BlockType::Q8_0)),
        (newer.clone(), Dtype::F8_E4M3.into()),
        (newer, StoredType::Blocks(BlockType::Q5_1)),
        (large, StoredType::Blocks(BlockType::Q4_K)),
    ] {
        let shapes = sd3(&shape);
        let made = round_trip(&shapes, matrices, || shape.names());
        assert_eq!(Sd3Shape::read(&made), Some(shape.clone()));
        let of_diffusers = Sd3Shape { dialect: Sd3Dialect::Diffusers, ..shape };
        assert_eq!(Sd3Shape::read(&declared(&shapes, matrices)), Some(of_diffusers.clone()));
        round_trip(&shapes, matrices, || of_diffusers.names());
    }
}

fn flux(shape: &FluxShape) -> Vec<(String, Vec<usize>)> {
    let d = shape.width;
    let mut layers = vec![
        ("x_embedder".to_string(), d, shape.in_channels),
        ("context_embedder".into(), d, shape.context_dim),
        ("proj_out".into(), shape.out_channels, d),
    ];
    let mut embed = |name: &str, k: usize| {
        layers.push((format!("time_text_embed.{name}_embedder.linear_1"), d, k));
        layers.push((format!("time_text_embed.{name}_embedder.linear_2"), d, d));
    };
    let mut norms = Vec::new();
    if let Some(pooled) = shape.pooled_dim {
        embed("timestep", 256);
        embed("text", pooled);
        if shape.guidance {
            embed("guidance", 256);
        }
        layers.push(("norm_out.linear".into(), 2 * d, d));
    }
    if let Some(Approximator { channels, hidden, layers: count }) = shape.approximator {
        let name = |name: &str| format!("distilled_guidance_layer.{name}");
        layers.extend([(name("in_proj"), hidden, channels), (name("out_proj"), d, hidden)]);
        for i in 0..count {
            let pair = ["linear_1", "linear_2"].map(|linear| (name(&format!("layers.{i}.{linear}")), hidden, hidden));
            layers.extend(pair);
            norms.push((name(&format!("norms.{i}.weight")), vec![hidden]));
        }
    }
    let modulated = shape.approximator.is_none();
    for i in 0..shape.double_blocks {
        let block = format!("transformer_blocks.{i}");
        for name in ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"] {
            layers.push((format!("{block}.attn.{name}"), d, d));
        }
        for ff in ["ff", "ff_context"] {
            layers.extend([(format!("{block}.{ff}.net.0.proj"), 4 * d, d), (format!("{block}.{ff}.net.2"), d, 4 * d)]);
        }
        let modulations = ["norm1", "norm1_context"].map(|norm| (format!("{block}.{norm}.linear"), 6 * d, d));
        layers.extend(modulations.into_iter().filter(|_| modulated));
        let all = ["norm_q", "norm_k", "norm_added_q", "norm_added_k"];
        norms.extend(all.map(|norm| (format!("{block}.attn.{norm}.weight"), vec![shape.head_dim])));
    }
    for i in 0..shape.single_blocks {
        let block = format!("single_transformer_blocks.{i}");
        layers.extend(["to_q", "to_k", "to_v"].map(|name| (format!("{block}.attn.{name}"), d, d)));
        layers.extend([(format!("{block}.proj_mlp"), 4 * d, d), (format!("{block}.proj_out"), d, 5 * d)]);
        layers.extend(Some((format!("{block}.norm.linear"), 3 * d, d)).filter(|_| modulated));
        norms.extend(["norm_q", "norm_k"].map(|norm| (format!("{block}.attn.{norm}.weight"), vec![shape.head_dim])));
    }
    linear(&mut norms, &layers);
    norms
}

#[test]
fn tensors_of_flux_and_chroma_map_both_ways() {
    let schnell = FluxShape {
        dialect: FluxDialect::Authors,
        double_blocks: 2,
        single_blocks: 11,
        width: 64,
        head_dim: 16,
        in_channels: 64,
        out_channels: 64,
        context_dim: 96,
        pooled_dim: Some(32),
        guidance: false,
        approximator: None,
    };
    let fill =
        FluxShape { in_channels: 384, guidance: true, dialect: FluxDialect::AuthorsWithWeights, ..schnell.clone() };
    let approximator = Approximator { channels: 64, hidden: 32, layers: 5 };
    let chroma = FluxShape { pooled_dim: None, approximator: Some(approximator), ..schnell.clone() };
    for shape in [schnell, fill, chroma] {
        for matrices in [Dtype::BF16.into(), Dtype::F8_E4M3.into(), StoredType::Blocks(BlockType::Q4_0)] {
            let shapes = flux(&shape);
            let made = round_trip(&shapes, matrices, || shape.names());
            assert_eq!(FluxShape::read(&made), Some(shape.clone()));
            let of_diffusers = FluxShape { dialect: FluxDialect::Diffusers, ..shape.clone() };
            assert_eq!(FluxShape::read(&declared(&shapes, matrices)), Some(of_diffusers));
        }
    }
}

#[test]
fn tensors_of_t5_map_both_ways() {
    let shape = T5Shape {
        dialect: T5Dialect::Gguf,
        vocab_size: 100,
        width: 64,
        heads: 2,
        head_dim: 48,
        hidden: 128,
        layers: 3,
        buckets: 32,
    };
    let T5Shape { width: d, hidden, .. } = shape;
    let inner = shape.heads * shape.head_dim;
    let mut shapes =
        vec![("shared.weight".to_string(), vec![100, d]), ("encoder.final_layer_norm.weight".into(), vec![d])];
    for i in 0..shape.layers {
        let mut add = |name: &str, shape: &[usize]| {
            shapes.push((format!("encoder.block.{i}.{name}.weight"), shape.to_vec()));
        };
        ["q", "k", "v"].into_iter().for_each(|name| add(&format!("layer.0.SelfAttention.{name}"), &[inner, d]));
        add("layer.0.SelfAttention.o", &[d, inner]);
        ["wi_0", "wi_1"].into_iter().for_each(|name| add(&format!("layer.1.DenseReluDense.{name}"), &[hidden, d]));
        add("layer.1.DenseReluDense.wo", &[d, hidden]);
        ["layer.0.layer_norm", "layer.1.layer_norm"].into_iter().for_each(|name| add(name, &[d]));
        if i == 0 {
            add("layer.0.SelfAttention.relative_attention_bias", &[32, shape.heads]);
        }
    }
    for dialect in [T5Dialect::Transformers, T5Dialect::EmbedTokens, T5Dialect::Gguf] {
        let made = round_trip(&shapes, Dtype::F16.into(), || dialect.names());
        assert_eq!(T5Shape::read(&made), Some(T5Shape { dialect, ..shape.clone() }));
    }
    shapes.push(("encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight".into(), vec![32, shape.heads]));
    assert_eq!(T5Shape::read(&declared(&shapes, Dtype::F16.into())), None, "UMT5");
}

#[test]
fn tensors_that_cannot_be_cut_are_missing() {
    let info = |shape: &[usize], dtype: StoredType| ParamInfo { shape: shape.to_vec(), dtype };
    let third = Piece::third(1);
    assert_eq!(third.info(info(&[6, 4], Dtype::F16.into())), Some(info(&[2, 4], Dtype::F16.into())));
    assert_eq!(third.info(info(&[7, 4], Dtype::F16.into())), None);
    assert_eq!(third.info(info(&[], Dtype::F16.into())), None);
    let blocks = StoredType::Blocks(BlockType::Q8_0);
    assert_eq!(third.info(info(&[96], blocks)), Some(info(&[32], blocks)));
    assert_eq!(third.info(info(&[48], blocks)), None, "a block is whole");
    assert_eq!(Piece::Exchanged.info(info(&[3, 4], Dtype::F16.into())), None);
    assert_eq!(Piece::Exchanged.info(info(&[32], blocks)), None);
    assert_eq!(Piece::Rows { first: 3, count: 4, of: 7 }.rows(21), Some(9..21));
    assert_eq!(Piece::Rows { first: 3, count: 5, of: 7 }.rows(21), None);
    assert_eq!(Piece::Rows { first: 0, count: 1, of: 0 }.rows(21), None);
}
