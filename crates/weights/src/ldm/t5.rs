//! T5's text encoder (version 1.1): the names in transformers and in GGUF files, and its dimensions derived from the names
//! and shapes of its tensors.

use super::{Names, Part, Piece, same_names};
use crate::source::ParamSource;

/// llama.cpp's names of a block.
const GGUF_BLOCK: &[Part] = &[
    ("layer.0.SelfAttention.q", "attn_q", Piece::Whole),
    ("layer.0.SelfAttention.k", "attn_k", Piece::Whole),
    ("layer.0.SelfAttention.v", "attn_v", Piece::Whole),
    ("layer.0.SelfAttention.o", "attn_o", Piece::Whole),
    ("layer.0.SelfAttention.relative_attention_bias", "attn_rel_b", Piece::Whole),
    ("layer.0.layer_norm", "attn_norm", Piece::Whole),
    ("layer.1.DenseReluDense.wi_0", "ffn_gate", Piece::Whole),
    ("layer.1.DenseReluDense.wi_1", "ffn_up", Piece::Whole),
    ("layer.1.DenseReluDense.wo", "ffn_down", Piece::Whole),
    ("layer.1.layer_norm", "ffn_norm", Piece::Whole),
];

const TOKENS: &str = "shared";
/// The second name of the token table in transformers, which some files have alone.
const EMBED_TOKENS: &str = "encoder.embed_tokens";
const BLOCKS: &str = "encoder.block";
const POSITIONS: &str = "layer.0.SelfAttention.relative_attention_bias.weight";

/// The maximum number of layers. The rest of a file that claims more is not read.
const MAX_LAYERS: usize = 128;

/// The naming scheme of a text encoder's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum T5Dialect {
    /// The names of transformers.
    Transformers,
    /// The names of transformers, with the token table as `encoder.embed_tokens` alone.
    EmbedTokens,
    /// The names of llama.cpp, in GGUF files.
    Gguf,
}

/// The dimensions of a text encoder, derived from the names and shapes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct T5Shape {
    /// The naming scheme.
    pub dialect: T5Dialect,
    /// Rows of the token table.
    pub vocab_size: usize,
    /// Channels of the tokens.
    pub width: usize,
    /// The number of attention heads.
    pub heads: usize,
    /// Channels of an attention head.
    pub head_dim: usize,
    /// Channels of the hidden layer of the feed-forward blocks.
    pub hidden: usize,
    /// The number of layers.
    pub layers: usize,
    /// The number of buckets of relative positions.
    pub buckets: usize,
}

impl T5Shape {
    /// Reads the dimensions from a source without a prefix. `None` if there is no such encoder: those of version 1.0 have one
    /// input matrix in the feed-forward blocks, and UMT5 has positions in every layer.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let has = |name: &str| source.info(name).is_some();
        let dialect = if has("enc.blk.0.attn_rel_b.weight") {
            T5Dialect::Gguf
        } else if has("shared.weight") {
            T5Dialect::Transformers
        } else if has("encoder.embed_tokens.weight") {
            T5Dialect::EmbedTokens
        } else {
            return None;
        };
        let names = dialect.names();
        let matrix = |key: &str| names.info(source, key).and_then(|info| <[usize; 2]>::try_from(info.shape).ok());
        let in_block = |i: usize, key: &str| matrix(&format!("{BLOCKS}.{i}.{key}"));
        let [vocab_size, width] = matrix(&format!("{TOKENS}.weight"))?;
        let [buckets, heads] = in_block(0, POSITIONS)?;
        let [inner, _] = in_block(0, "layer.0.SelfAttention.q.weight")?;
        let [hidden, _] = in_block(0, "layer.1.DenseReluDense.wi_0.weight")?;
        let layers = (0..MAX_LAYERS).take_while(|&i| in_block(i, "layer.1.DenseReluDense.wo.weight").is_some()).count();
        let is_t5 = in_block(1, POSITIONS).is_none() && heads > 0 && inner.is_multiple_of(heads) && layers > 0;
        let head_dim = inner.checked_div(heads)?;
        is_t5.then_some(Self { dialect, vocab_size, width, heads, head_dim, hidden, layers, buckets })
    }
}

impl T5Dialect {
    /// The names of a text encoder.
    pub fn names(self) -> Names {
        let mut names = match self {
            Self::Transformers | Self::EmbedTokens => same_names(),
            Self::Gguf => Names::default(),
        };
        match self {
            Self::Transformers => {}
            Self::EmbedTokens => names.add(TOKENS, EMBED_TOKENS, &[]),
            Self::Gguf => {
                names.add(TOKENS, "token_embd", &[]);
                names.add("encoder.final_layer_norm", "enc.output_norm", &[]);
                for i in 0..MAX_LAYERS {
                    names.add(format!("{BLOCKS}.{i}"), format!("enc.blk.{i}"), GGUF_BLOCK);
                }
            }
        }
        names
    }
}
