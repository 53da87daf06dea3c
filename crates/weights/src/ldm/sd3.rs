//! The transformer of Stable Diffusion 3 and 3.5 (MM-DiT): the names of its authors' code, and its dimensions derived from
//! the names and shapes of its tensors.

use super::{Names, Part, Piece, same_names};
use crate::source::ParamSource;

const BLOCK: &[Part] = &[
    ("norm1.linear", "x_block.adaLN_modulation.1", Piece::Whole),
    ("norm1_context.linear", "context_block.adaLN_modulation.1", Piece::Whole),
    ("attn.to_q", "x_block.attn.qkv", Piece::third(0)),
    ("attn.to_k", "x_block.attn.qkv", Piece::third(1)),
    ("attn.to_v", "x_block.attn.qkv", Piece::third(2)),
    ("attn.norm_q", "x_block.attn.ln_q", Piece::Whole),
    ("attn.norm_k", "x_block.attn.ln_k", Piece::Whole),
    ("attn.to_out.0", "x_block.attn.proj", Piece::Whole),
    ("attn.add_q_proj", "context_block.attn.qkv", Piece::third(0)),
    ("attn.add_k_proj", "context_block.attn.qkv", Piece::third(1)),
    ("attn.add_v_proj", "context_block.attn.qkv", Piece::third(2)),
    ("attn.norm_added_q", "context_block.attn.ln_q", Piece::Whole),
    ("attn.norm_added_k", "context_block.attn.ln_k", Piece::Whole),
    ("attn.to_add_out", "context_block.attn.proj", Piece::Whole),
    ("attn2.to_q", "x_block.attn2.qkv", Piece::third(0)),
    ("attn2.to_k", "x_block.attn2.qkv", Piece::third(1)),
    ("attn2.to_v", "x_block.attn2.qkv", Piece::third(2)),
    ("attn2.norm_q", "x_block.attn2.ln_q", Piece::Whole),
    ("attn2.norm_k", "x_block.attn2.ln_k", Piece::Whole),
    ("attn2.to_out.0", "x_block.attn2.proj", Piece::Whole),
    ("ff.net.0.proj", "x_block.mlp.fc1", Piece::Whole),
    ("ff.net.2", "x_block.mlp.fc2", Piece::Whole),
    ("ff_context.net.0.proj", "context_block.mlp.fc1", Piece::Whole),
    ("ff_context.net.2", "context_block.mlp.fc2", Piece::Whole),
];

/// The parts that every transformer has once: `(declared, stored)`.
const SINGLE: [(&str, &str); 8] = [
    ("pos_embed.proj", "x_embedder.proj"),
    ("pos_embed.pos_embed", "pos_embed"),
    ("time_text_embed.timestep_embedder.linear_1", "t_embedder.mlp.0"),
    ("time_text_embed.timestep_embedder.linear_2", "t_embedder.mlp.2"),
    ("time_text_embed.text_embedder.linear_1", "y_embedder.mlp.0"),
    ("time_text_embed.text_embedder.linear_2", "y_embedder.mlp.2"),
    ("context_embedder", "context_embedder"),
    ("proj_out", "final_layer.linear"),
];

/// The authors' modulations without a gate have the shift first, diffusers' the scale.
const SHIFT_FIRST: &[Part] = &[("", "", Piece::Exchanged)];

/// The maximum number of blocks. The rest of a file that claims more is not read.
const MAX_BLOCKS: usize = 128;

/// Channels of an attention head in all official models.
const HEAD_DIM: usize = 64;

/// The naming scheme of a transformer's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sd3Dialect {
    /// The names of Stability AI's code.
    Authors,
    /// The names of diffusers.
    Diffusers,
}

/// The dimensions of a transformer, derived from the names and shapes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sd3Shape {
    /// The naming scheme.
    pub dialect: Sd3Dialect,
    /// The number of blocks.
    pub blocks: usize,
    /// Channels of the tokens.
    pub width: usize,
    /// Channels of an attention head: those of the normalizations, else 64.
    pub head_dim: usize,
    /// Whether queries and keys are normalized.
    pub qk_norm: bool,
    /// The blocks with a second attention, of the image alone.
    pub dual_blocks: Vec<usize>,
    /// Channels of the input.
    pub in_channels: usize,
    /// Channels of the output.
    pub out_channels: usize,
    /// The side of a token's patch.
    pub patch: usize,
    /// Channels of the text's tokens.
    pub context_dim: usize,
    /// Channels of the pooled text.
    pub pooled_dim: usize,
    /// The side of the table of positions, in tokens.
    pub positions: usize,
}

impl Sd3Shape {
    /// Reads the dimensions from a source without a prefix. `None` if there is no such transformer.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let has = |name: &str| source.info(name).is_some();
        let (dialect, names) = if has("joint_blocks.0.context_block.attn.qkv.weight") {
            (Sd3Dialect::Authors, Self::authors_names(MAX_BLOCKS))
        } else if has("transformer_blocks.0.attn.add_k_proj.weight")
            && has("pos_embed.proj.weight")
            && !has("controlnet_blocks.0.weight")
        {
            (Sd3Dialect::Diffusers, same_names())
        } else {
            return None;
        };
        let shape = |key: &str| names.info(source, key).map(|info| info.shape);
        let dim = |key: &str, axis: usize| shape(key)?.get(axis).copied();
        let in_block = |i: usize, key: &str| shape(&format!("transformer_blocks.{i}.{key}.weight"));
        let blocks = (0..MAX_BLOCKS).take_while(|&i| in_block(i, "attn.to_q").is_some()).count();
        let [width, in_channels, patch, _] = shape("pos_embed.proj.weight")?.try_into().ok()?;
        let rows = shape("pos_embed.pos_embed")?.iter().rev().nth(1).copied()?;
        let positions = rows.isqrt();
        let norm = in_block(0, "attn.norm_q");
        let head_dim = match &norm {
            Some(shape) => shape.first().copied()?,
            None if width.is_multiple_of(HEAD_DIM) => HEAD_DIM,
            None => width,
        };
        let is_whole = positions * positions == rows && head_dim > 0 && patch > 0 && blocks > 0;
        is_whole.then_some(Self {
            dialect,
            blocks,
            width,
            head_dim,
            qk_norm: norm.is_some(),
            dual_blocks: (0..blocks).filter(|&i| in_block(i, "attn2.to_q").is_some()).collect(),
            in_channels,
            out_channels: dim("proj_out.weight", 0)?.checked_div(patch.checked_mul(patch)?)?,
            patch,
            context_dim: dim("context_embedder.weight", 1)?,
            pooled_dim: dim("time_text_embed.text_embedder.linear_1.weight", 1)?,
            positions,
        })
    }

    /// The names of such a transformer.
    pub fn names(&self) -> Names {
        match self.dialect {
            Sd3Dialect::Authors => Self::authors_names(self.blocks),
            Sd3Dialect::Diffusers => same_names(),
        }
    }

    /// The authors' names of a transformer with `blocks` blocks. The last one has no output for the text.
    pub fn authors_names(blocks: usize) -> Names {
        let mut names = Names::default();
        for (declared, stored) in SINGLE {
            names.add(declared, stored, &[]);
        }
        names.add("norm_out.linear", "final_layer.adaLN_modulation.1", SHIFT_FIRST);
        for i in 0..blocks {
            names.add(format!("transformer_blocks.{i}"), format!("joint_blocks.{i}"), BLOCK);
        }
        if let Some(last) = blocks.checked_sub(1) {
            let (declared, stored) = ("norm1_context.linear", "context_block.adaLN_modulation.1");
            let stored = format!("joint_blocks.{last}.{stored}");
            names.add(format!("transformer_blocks.{last}.{declared}"), stored, SHIFT_FIRST);
        }
        names
    }
}
