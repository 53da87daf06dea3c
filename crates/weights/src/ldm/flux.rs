//! The transformer of FLUX.1 and of Chroma: the names of its authors' code, and its dimensions derived from the names and
//! shapes of its tensors.

use super::{Names, Part, Piece, same_names};
use crate::source::ParamSource;

const DOUBLE: &[Part] = &[
    ("norm1.linear", "img_mod.lin", Piece::Whole),
    ("norm1_context.linear", "txt_mod.lin", Piece::Whole),
    ("attn.to_q", "img_attn.qkv", Piece::third(0)),
    ("attn.to_k", "img_attn.qkv", Piece::third(1)),
    ("attn.to_v", "img_attn.qkv", Piece::third(2)),
    ("attn.to_out.0", "img_attn.proj", Piece::Whole),
    ("attn.add_q_proj", "txt_attn.qkv", Piece::third(0)),
    ("attn.add_k_proj", "txt_attn.qkv", Piece::third(1)),
    ("attn.add_v_proj", "txt_attn.qkv", Piece::third(2)),
    ("attn.to_add_out", "txt_attn.proj", Piece::Whole),
    ("ff.net.0.proj", "img_mlp.0", Piece::Whole),
    ("ff.net.2", "img_mlp.2", Piece::Whole),
    ("ff_context.net.0.proj", "txt_mlp.0", Piece::Whole),
    ("ff_context.net.2", "txt_mlp.2", Piece::Whole),
];

/// A fused matrix has queries, keys and values, and the hidden layer, which is four times as wide as each of them.
const LINEAR1_PARTS: usize = 3 + 4;

const SINGLE: &[Part] = &[
    ("norm.linear", "modulation.lin", Piece::Whole),
    ("attn.to_q", "linear1", Piece::Rows { first: 0, count: 1, of: LINEAR1_PARTS }),
    ("attn.to_k", "linear1", Piece::Rows { first: 1, count: 1, of: LINEAR1_PARTS }),
    ("attn.to_v", "linear1", Piece::Rows { first: 2, count: 1, of: LINEAR1_PARTS }),
    ("proj_mlp", "linear1", Piece::Rows { first: 3, count: 4, of: LINEAR1_PARTS }),
    ("proj_out", "linear2", Piece::Whole),
];

/// The normalizations of a block: `(declared, stored)`.
const DOUBLE_NORMS: [(&str, &str); 4] = [
    ("attn.norm_q", "img_attn.norm.query_norm"),
    ("attn.norm_k", "img_attn.norm.key_norm"),
    ("attn.norm_added_q", "txt_attn.norm.query_norm"),
    ("attn.norm_added_k", "txt_attn.norm.key_norm"),
];
const SINGLE_NORMS: [(&str, &str); 2] = [("attn.norm_q", "norm.query_norm"), ("attn.norm_k", "norm.key_norm")];

/// The parts that a transformer has once: `(declared, stored)`.
const PARTS: [(&str, &str); 11] = [
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    ("time_text_embed.timestep_embedder.linear_1", "time_in.in_layer"),
    ("time_text_embed.timestep_embedder.linear_2", "time_in.out_layer"),
    ("time_text_embed.text_embedder.linear_1", "vector_in.in_layer"),
    ("time_text_embed.text_embedder.linear_2", "vector_in.out_layer"),
    ("time_text_embed.guidance_embedder.linear_1", "guidance_in.in_layer"),
    ("time_text_embed.guidance_embedder.linear_2", "guidance_in.out_layer"),
    ("proj_out", "final_layer.linear"),
    ("distilled_guidance_layer.in_proj", "distilled_guidance_layer.in_proj"),
    ("distilled_guidance_layer.out_proj", "distilled_guidance_layer.out_proj"),
];

/// The authors' last modulation has the shift first, diffusers' the scale.
const SHIFT_FIRST: &[Part] = &[("", "", Piece::Exchanged)];

/// A layer of Chroma's approximator.
const APPROXIMATOR_LAYER: &[Part] = &[("linear_1", "in_layer", Piece::Whole), ("linear_2", "out_layer", Piece::Whole)];

/// The maximum number of blocks of each kind. The rest of a file that claims more is not read.
const MAX_BLOCKS: usize = 128;

/// The maximum number of layers of Chroma's approximator.
const MAX_LAYERS: usize = 16;

/// Channels of an attention head in all official models.
const HEAD_DIM: usize = 128;

/// The naming scheme of a transformer's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FluxDialect {
    /// The names of Black Forest Labs' code.
    Authors,
    /// The authors' names, with `weight` in place of `scale` for normalizations.
    AuthorsWithWeights,
    /// The names of diffusers.
    Diffusers,
}

/// The network that computes Chroma's modulations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Approximator {
    /// Channels of its input.
    pub channels: usize,
    /// Channels of its layers.
    pub hidden: usize,
    /// The number of its layers.
    pub layers: usize,
}

/// The dimensions of a transformer, derived from the names and shapes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FluxShape {
    /// The naming scheme.
    pub dialect: FluxDialect,
    /// The number of blocks with separate weights for image and text.
    pub double_blocks: usize,
    /// The number of blocks with one set of weights.
    pub single_blocks: usize,
    /// Channels of the tokens.
    pub width: usize,
    /// Channels of an attention head.
    pub head_dim: usize,
    /// Channels of an input token: 64; 128 with a control image, 384 with a masked image and its mask.
    pub in_channels: usize,
    /// Channels of an output token.
    pub out_channels: usize,
    /// Channels of the text's tokens.
    pub context_dim: usize,
    /// Channels of the pooled text. `None` for Chroma, which has none.
    pub pooled_dim: Option<usize>,
    /// Whether there is an embedding of the guidance scale.
    pub guidance: bool,
    /// Chroma's approximator, in place of embeddings and modulations.
    pub approximator: Option<Approximator>,
}

impl FluxShape {
    /// Reads the dimensions from a source without a prefix. `None` if there is no such transformer.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let has = |name: &str| source.info(name).is_some();
        let (double, single) = (MAX_BLOCKS, MAX_BLOCKS);
        // FLUX.2 has the blocks too, but one modulation for all of them.
        if has("double_stream_modulation_img.lin.weight") || has("controlnet_x_embedder.weight") {
            return None;
        }
        let dialect = if has("double_blocks.0.img_attn.norm.key_norm.scale") {
            FluxDialect::Authors
        } else if has("double_blocks.0.img_attn.norm.key_norm.weight") {
            FluxDialect::AuthorsWithWeights
        } else if has("single_transformer_blocks.0.attn.to_q.weight") && has("x_embedder.weight") {
            FluxDialect::Diffusers
        } else {
            return None;
        };
        let names = dialect.names(double, single);
        let shape = |key: &str| names.info(source, key).map(|info| info.shape);
        let dim = |key: &str, axis: usize| shape(key)?.get(axis).copied();
        let count = |kind: &str, key: &str, most: usize| {
            (0..most).take_while(|i| shape(&format!("{kind}.{i}.{key}.weight")).is_some()).count()
        };
        let [width, in_channels] = shape("x_embedder.weight")?.try_into().ok()?;
        let head_dim = dim("transformer_blocks.0.attn.norm_k.weight", 0).unwrap_or(HEAD_DIM);
        let approximator = || {
            let [hidden, channels] = shape("distilled_guidance_layer.in_proj.weight")?.try_into().ok()?;
            let layers = count("distilled_guidance_layer.layers", "linear_1", MAX_LAYERS);
            Some(Approximator { channels, hidden, layers })
        };
        let found = Self {
            dialect,
            double_blocks: count("transformer_blocks", "attn.to_q", double),
            single_blocks: count("single_transformer_blocks", "attn.to_q", single),
            width,
            head_dim,
            in_channels,
            out_channels: dim("proj_out.weight", 0)?,
            context_dim: dim("context_embedder.weight", 1)?,
            pooled_dim: dim("time_text_embed.text_embedder.linear_1.weight", 1),
            guidance: shape("time_text_embed.guidance_embedder.linear_1.weight").is_some(),
            approximator: approximator(),
        };
        let is_whole = head_dim > 0 && found.double_blocks > 0;
        (is_whole && found.pooled_dim.is_some() != found.approximator.is_some()).then_some(found)
    }

    /// The names of such a transformer.
    pub fn names(&self) -> Names {
        self.dialect.names(self.double_blocks, self.single_blocks)
    }
}

impl FluxDialect {
    /// The names of a transformer with these numbers of blocks.
    pub fn names(self, double_blocks: usize, single_blocks: usize) -> Names {
        let scale = match self {
            Self::Authors => "scale",
            Self::AuthorsWithWeights => "weight",
            Self::Diffusers => return same_names(),
        };
        let mut names = Names::default();
        for (declared, stored) in PARTS {
            names.add(declared, stored, &[]);
        }
        names.add("norm_out.linear", "final_layer.adaLN_modulation.1", SHIFT_FIRST);
        for i in 0..double_blocks {
            let (declared, stored) = (format!("transformer_blocks.{i}"), format!("double_blocks.{i}"));
            for (ours, theirs) in DOUBLE_NORMS {
                names.add(format!("{declared}.{ours}.weight"), format!("{stored}.{theirs}.{scale}"), &[]);
            }
            names.add(declared, stored, DOUBLE);
        }
        for i in 0..single_blocks {
            let (declared, stored) = (format!("single_transformer_blocks.{i}"), format!("single_blocks.{i}"));
            for (ours, theirs) in SINGLE_NORMS {
                names.add(format!("{declared}.{ours}.weight"), format!("{stored}.{theirs}.{scale}"), &[]);
            }
            names.add(declared, stored, SINGLE);
        }
        for i in 0..MAX_LAYERS {
            let layers = format!("distilled_guidance_layer.layers.{i}");
            let norms = format!("distilled_guidance_layer.norms.{i}");
            names.add(layers.clone(), layers, APPROXIMATOR_LAYER);
            names.add(format!("{norms}.weight"), format!("{norms}.{scale}"), &[]);
        }
        names
    }
}
