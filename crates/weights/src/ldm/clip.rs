//! CLIP's text encoders: the names in transformers, OpenCLIP, and stable-diffusion.cpp.

use super::{Names, Part, Piece};
use crate::source::ParamSource;

const OPEN_CLIP_LAYER: &[Part] = &[
    ("layer_norm1", "ln_1", Piece::Whole),
    ("layer_norm2", "ln_2", Piece::Whole),
    ("mlp.fc1", "mlp.c_fc", Piece::Whole),
    ("mlp.fc2", "mlp.c_proj", Piece::Whole),
    ("self_attn.out_proj", "attn.out_proj", Piece::Whole),
    ("self_attn.q_proj.weight", "attn.in_proj_weight", Piece::third(0)),
    ("self_attn.k_proj.weight", "attn.in_proj_weight", Piece::third(1)),
    ("self_attn.v_proj.weight", "attn.in_proj_weight", Piece::third(2)),
    ("self_attn.q_proj.bias", "attn.in_proj_bias", Piece::third(0)),
    ("self_attn.k_proj.bias", "attn.in_proj_bias", Piece::third(1)),
    ("self_attn.v_proj.bias", "attn.in_proj_bias", Piece::third(2)),
];

/// stable-diffusion.cpp renames the parts of an OpenCLIP layer and keeps its fused projection.
const FUSED_LAYER: &[Part] = &[
    ("layer_norm1", "layer_norm1", Piece::Whole),
    ("layer_norm2", "layer_norm2", Piece::Whole),
    ("mlp", "mlp", Piece::Whole),
    ("self_attn.out_proj", "self_attn.out_proj", Piece::Whole),
    ("self_attn.q_proj", "self_attn.in_proj", Piece::third(0)),
    ("self_attn.k_proj", "self_attn.in_proj", Piece::third(1)),
    ("self_attn.v_proj", "self_attn.in_proj", Piece::third(2)),
];

/// OpenCLIP stores its projection transposed.
const TRANSPOSED: &[Part] = &[("", "", Piece::Transposed)];

const TOKENS: &str = "text_model.embeddings.token_embedding";
const POSITIONS: &str = "text_model.embeddings.position_embedding";
const LAYERS: &str = "text_model.encoder.layers";
const FINAL_NORM: &str = "text_model.final_layer_norm";
const PROJECTION: &str = "text_projection.weight";

/// The maximum number of layers.
const MAX_LAYERS: usize = 256;

/// The naming scheme of a text encoder's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClipDialect {
    /// transformers'.
    Transformers,
    /// transformers' without `text_model.`.
    Bare,
    /// OpenCLIP's.
    OpenClip,
    /// OpenCLIP's, except for the projection, which is transformers'. diffusers' conversion script writes this.
    OpenClipByDiffusers,
    /// stable-diffusion.cpp's for an encoder of OpenCLIP: transformers' names with fused projections.
    Fused,
}

/// The dimensions of a text encoder, derived from the names and shapes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClipShape {
    /// The naming scheme.
    pub dialect: ClipDialect,
    /// Rows of the token table.
    pub vocab_size: usize,
    /// Rows of the position table.
    pub positions: usize,
    /// Channels of the tokens.
    pub hidden_size: usize,
    /// Channels of the hidden layer of the feed-forward blocks.
    pub intermediate_size: usize,
    /// The number of layers.
    pub layers: usize,
    /// Channels of the projected pooled vector, if there is a projection.
    pub projection_dim: Option<usize>,
}

impl ClipShape {
    /// Reads the dimensions from a source without a prefix. `None` if there is no text encoder.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let shape = |name: &str| source.info(name).map(|info| info.shape);
        let has = |name: &str| shape(name).is_some();
        let dialect = if has("token_embedding.weight") {
            if has(PROJECTION) { ClipDialect::OpenClipByDiffusers } else { ClipDialect::OpenClip }
        } else if has("embeddings.token_embedding.weight") {
            ClipDialect::Bare
        } else if has(&format!("{LAYERS}.0.self_attn.in_proj.weight")) {
            ClipDialect::Fused
        } else if has(&format!("{TOKENS}.weight")) {
            ClipDialect::Transformers
        } else {
            return None;
        };
        // The first projection that exists: its table of names defines how it is stored.
        let names = dialect.names();
        let stored = |key: &str| {
            let place = names.place(key)?;
            let mut shape = shape(&place.name)?;
            if place.piece == Piece::Transposed {
                shape.reverse();
            }
            Some(shape)
        };
        let matrix = |key: &str| stored(key).and_then(|shape| <[usize; 2]>::try_from(shape).ok());
        let [vocab_size, hidden_size] = matrix(&format!("{TOKENS}.weight"))?;
        let [positions, _] = matrix(&format!("{POSITIONS}.weight"))?;
        let [intermediate_size, _] = matrix(&format!("{LAYERS}.0.mlp.fc1.weight"))?;
        let layer = |i: &usize| stored(&format!("{LAYERS}.{i}.mlp.fc1.weight")).is_some();
        Some(Self {
            dialect,
            vocab_size,
            positions,
            hidden_size,
            intermediate_size,
            layers: (0..MAX_LAYERS).take_while(layer).count(),
            projection_dim: matrix(PROJECTION).map(|[dim, _]| dim),
        })
    }
}

impl ClipDialect {
    /// The names of a text encoder.
    pub fn names(self) -> Names {
        let mut names = Names::default();
        match self {
            Self::Transformers => names.add("", "", &[]),
            Self::Bare => {
                names.add("text_model", "", &[]);
                names.add("text_projection", "text_projection", &[]);
            }
            Self::OpenClip | Self::OpenClipByDiffusers => {
                names.add(TOKENS, "token_embedding", &[]);
                names.add(format!("{POSITIONS}.weight"), "positional_embedding", &[]);
                names.add(FINAL_NORM, "ln_final", &[]);
                match self {
                    Self::OpenClip => names.add(PROJECTION, "text_projection", TRANSPOSED),
                    _ => names.add(PROJECTION, PROJECTION, &[]),
                }
                for i in 0..MAX_LAYERS {
                    names.add(format!("{LAYERS}.{i}"), format!("transformer.resblocks.{i}"), OPEN_CLIP_LAYER);
                }
            }
            Self::Fused => {
                names.add("text_model", "text_model", &[]);
                names.add(PROJECTION, "text_model.text_projection", TRANSPOSED);
                for i in 0..MAX_LAYERS {
                    names.add(format!("{LAYERS}.{i}"), format!("{LAYERS}.{i}"), FUSED_LAYER);
                }
            }
        }
        names
    }
}
