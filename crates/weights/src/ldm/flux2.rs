//! The transformer of FLUX.2: the names of its authors' code, and its dimensions derived from the names and shapes of its tensors.

use super::{Names, Part, Piece, same_names};
use crate::source::ParamSource;

const DOUBLE: &[Part] = &[
    ("attn.to_q", "img_attn.qkv", Piece::third(0)),
    ("attn.to_k", "img_attn.qkv", Piece::third(1)),
    ("attn.to_v", "img_attn.qkv", Piece::third(2)),
    ("attn.to_out.0", "img_attn.proj", Piece::Whole),
    ("attn.add_q_proj", "txt_attn.qkv", Piece::third(0)),
    ("attn.add_k_proj", "txt_attn.qkv", Piece::third(1)),
    ("attn.add_v_proj", "txt_attn.qkv", Piece::third(2)),
    ("attn.to_add_out", "txt_attn.proj", Piece::Whole),
    ("ff.linear_in", "img_mlp.0", Piece::Whole),
    ("ff.linear_out", "img_mlp.2", Piece::Whole),
    ("ff_context.linear_in", "txt_mlp.0", Piece::Whole),
    ("ff_context.linear_out", "txt_mlp.2", Piece::Whole),
];

const SINGLE: &[Part] = &[("attn.to_qkv_mlp_proj", "linear1", Piece::Whole), ("attn.to_out", "linear2", Piece::Whole)];

/// The normalizations of a block: `(declared, stored)`.
const DOUBLE_NORMS: [(&str, &str); 4] = [
    ("attn.norm_q", "img_attn.norm.query_norm"),
    ("attn.norm_k", "img_attn.norm.key_norm"),
    ("attn.norm_added_q", "txt_attn.norm.query_norm"),
    ("attn.norm_added_k", "txt_attn.norm.key_norm"),
];
const SINGLE_NORMS: [(&str, &str); 2] = [("attn.norm_q", "norm.query_norm"), ("attn.norm_k", "norm.key_norm")];

/// The parts that a transformer has once: `(declared, stored)`.
const PARTS: [(&str, &str); 10] = [
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    ("time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer"),
    ("time_guidance_embed.timestep_embedder.linear_2", "time_in.out_layer"),
    ("time_guidance_embed.guidance_embedder.linear_1", "guidance_in.in_layer"),
    ("time_guidance_embed.guidance_embedder.linear_2", "guidance_in.out_layer"),
    ("double_stream_modulation_img.linear", "double_stream_modulation_img.lin"),
    ("double_stream_modulation_txt.linear", "double_stream_modulation_txt.lin"),
    ("single_stream_modulation.linear", "single_stream_modulation.lin"),
    ("proj_out", "final_layer.linear"),
];

/// The authors' last modulation has the shift first, diffusers' the scale.
const SHIFT_FIRST: &[Part] = &[("", "", Piece::Exchanged)];

/// The maximum number of blocks of each kind. The rest of a file that claims more is not read.
const MAX_BLOCKS: usize = 128;

/// The naming scheme of a transformer's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flux2Dialect {
    /// The names of Black Forest Labs' code.
    Authors,
    /// The authors' names, with `weight` in place of `scale` for normalizations.
    AuthorsWithWeights,
    /// The names of diffusers.
    Diffusers,
}

/// The dimensions of a transformer, derived from the names and shapes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flux2Shape {
    /// The naming scheme.
    pub dialect: Flux2Dialect,
    /// The number of blocks with separate weights for image and text.
    pub double_blocks: usize,
    /// The number of blocks with one set of weights.
    pub single_blocks: usize,
    /// Channels of the tokens.
    pub width: usize,
    /// Channels of an attention head.
    pub head_dim: usize,
    /// Channels of an image token.
    pub in_channels: usize,
    /// Channels of the text's tokens.
    pub context_dim: usize,
    /// Channels of the hidden layer of the feed-forward layers.
    pub hidden: usize,
    /// Whether there is an embedding of the guidance scale.
    pub guidance: bool,
}

impl Flux2Shape {
    /// Reads the dimensions from a source without a prefix. `None` if there is no such transformer.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let has = |name: &str| source.info(name).is_some();
        let dialect = if has("double_stream_modulation_img.linear.weight") {
            Flux2Dialect::Diffusers
        } else if has("double_stream_modulation_img.lin.weight") {
            match has("double_blocks.0.img_attn.norm.key_norm.scale") {
                true => Flux2Dialect::Authors,
                false => Flux2Dialect::AuthorsWithWeights,
            }
        } else {
            return None;
        };
        let names = dialect.names(MAX_BLOCKS, MAX_BLOCKS);
        let shape = |key: &str| names.info(source, key).map(|info| info.shape);
        let count = |kind: &str, key: &str| {
            (0..MAX_BLOCKS).take_while(|i| shape(&format!("{kind}.{i}.{key}.weight")).is_some()).count()
        };
        let [width, in_channels] = shape("x_embedder.weight")?.try_into().ok()?;
        let [_, context_dim] = shape("context_embedder.weight")?.try_into().ok()?;
        let [_, hidden] = shape("transformer_blocks.0.ff.linear_out.weight")?.try_into().ok()?;
        let head_dim = shape("transformer_blocks.0.attn.norm_k.weight")?.first().copied()?;
        let found = Self {
            dialect,
            double_blocks: count("transformer_blocks", "attn.to_q"),
            single_blocks: count("single_transformer_blocks", "attn.to_out"),
            width,
            head_dim,
            in_channels,
            context_dim,
            hidden,
            guidance: shape("time_guidance_embed.guidance_embedder.linear_1.weight").is_some(),
        };
        (head_dim > 0 && width > 0 && found.double_blocks > 0).then_some(found)
    }

    /// The names of such a transformer.
    pub fn names(&self) -> Names {
        self.dialect.names(self.double_blocks, self.single_blocks)
    }
}

impl Flux2Dialect {
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
        names
    }
}
