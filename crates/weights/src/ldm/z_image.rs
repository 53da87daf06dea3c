//! The transformer of Z-Image: the names of its authors' code in files of ComfyUI, and its dimensions derived from the names and
//! shapes of its tensors.

use super::{Names, Part, Piece, same_names};
use crate::source::ParamSource;

const ATTENTION: &[Part] = &[
    ("to_q", "qkv", Piece::third(0)),
    ("to_k", "qkv", Piece::third(1)),
    ("to_v", "qkv", Piece::third(2)),
    ("to_out.0", "out", Piece::Whole),
    ("norm_q", "q_norm", Piece::Whole),
    ("norm_k", "k_norm", Piece::Whole),
];

/// The parts that diffusers names after the size of a patch: `(declared, stored)`.
const PARTS: [(&str, &str); 2] = [("all_x_embedder.2-1", "x_embedder"), ("all_final_layer.2-1", "final_layer")];

/// Blocks of the image, of the text, and of both.
const KINDS: [&str; 3] = ["noise_refiner", "context_refiner", "layers"];

/// The maximum number of blocks of a kind. The rest of a file that claims more is not read.
const MAX_BLOCKS: usize = 128;

/// The naming scheme of a transformer's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ZImageDialect {
    /// The names of its authors, with fused projections.
    Authors,
    /// The names of diffusers.
    Diffusers,
}

/// The dimensions of a transformer, derived from the names and shapes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZImageShape {
    /// The naming scheme.
    pub dialect: ZImageDialect,
    /// The number of blocks for all tokens.
    pub layers: usize,
    /// The number of blocks for the tokens of the image, and of the text.
    pub refiner_layers: usize,
    /// Channels of the tokens.
    pub width: usize,
    /// Channels of an attention head.
    pub head_dim: usize,
    /// Channels of an image token at the input.
    pub in_channels: usize,
    /// Channels of the text's tokens.
    pub context_dim: usize,
}

impl ZImageShape {
    /// Reads the dimensions from a source without a prefix. `None` if there is no such transformer: Lumina 2 has no learned
    /// filling.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let has = |name: &str| source.info(name).is_some();
        if !(has("cap_pad_token") && has("cap_embedder.1.weight")) {
            return None;
        }
        let dialect = if has("layers.0.attention.qkv.weight") {
            ZImageDialect::Authors
        } else if has("layers.0.attention.to_q.weight") {
            ZImageDialect::Diffusers
        } else {
            return None;
        };
        let names = dialect.names();
        let shape = |key: &str| names.info(source, key).map(|info| info.shape);
        let count = |kind: &str| {
            (0..MAX_BLOCKS).take_while(|i| shape(&format!("{kind}.{i}.attention.to_q.weight")).is_some()).count()
        };
        let [width, in_channels] = shape("all_x_embedder.2-1.weight")?.try_into().ok()?;
        let [_, context_dim] = shape("cap_embedder.1.weight")?.try_into().ok()?;
        let head_dim = shape("layers.0.attention.norm_q.weight")?.first().copied()?;
        let (layers, refiner_layers) = (count("layers"), count("noise_refiner"));
        let is_whole = head_dim > 0 && width.is_multiple_of(head_dim) && refiner_layers == count("context_refiner");
        is_whole.then_some(Self { dialect, layers, refiner_layers, width, head_dim, in_channels, context_dim })
    }

    /// The names of such a transformer.
    pub fn names(&self) -> Names {
        self.dialect.names()
    }
}

impl ZImageDialect {
    /// The names of a transformer of any depth. Tensors that are not listed have the same names.
    pub fn names(self) -> Names {
        let mut names = same_names();
        if self == Self::Diffusers {
            return names;
        }
        for (declared, stored) in PARTS {
            names.add(declared, stored, &[]);
        }
        for kind in KINDS {
            for i in 0..MAX_BLOCKS {
                let attention = format!("{kind}.{i}.attention");
                names.add(attention.clone(), attention, ATTENTION);
            }
        }
        names
    }
}
