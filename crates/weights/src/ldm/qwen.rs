//! Qwen's language models as text encoders: the names in transformers and in GGUF files, and the dimensions of Qwen3 derived from the
//! names and shapes of its tensors.

use super::{Names, Part, Piece, same_names};
use crate::source::ParamSource;

/// llama.cpp's names of a layer: Qwen3 has the norms of queries and keys, Qwen2 has biases.
const GGUF_LAYER: &[Part] = &[
    ("self_attn.q_proj", "attn_q", Piece::Whole),
    ("self_attn.k_proj", "attn_k", Piece::Whole),
    ("self_attn.v_proj", "attn_v", Piece::Whole),
    ("self_attn.o_proj", "attn_output", Piece::Whole),
    ("self_attn.q_norm", "attn_q_norm", Piece::Whole),
    ("self_attn.k_norm", "attn_k_norm", Piece::Whole),
    ("input_layernorm", "attn_norm", Piece::Whole),
    ("post_attention_layernorm", "ffn_norm", Piece::Whole),
    ("mlp.gate_proj", "ffn_gate", Piece::Whole),
    ("mlp.up_proj", "ffn_up", Piece::Whole),
    ("mlp.down_proj", "ffn_down", Piece::Whole),
];

const TOKENS: &str = "model.embed_tokens";
const LAYERS: &str = "model.layers";

/// The maximum number of layers. The rest of a file that claims more is not read.
const MAX_LAYERS: usize = 128;

/// The naming scheme of a text encoder's tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QwenDialect {
    /// The names of transformers.
    Transformers,
    /// The names of llama.cpp, in GGUF files.
    Gguf,
}

/// The dimensions of Qwen3, derived from the names and shapes of its tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QwenShape {
    /// The naming scheme.
    pub dialect: QwenDialect,
    /// Rows of the token table.
    pub vocab_size: usize,
    /// Channels of the tokens.
    pub width: usize,
    /// Heads of queries.
    pub heads: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Channels of a head.
    pub head_dim: usize,
    /// Channels of the hidden layer of the feed-forward layers.
    pub hidden: usize,
    /// The number of layers.
    pub layers: usize,
}

impl QwenShape {
    /// Reads the dimensions from a source without a prefix. `None` if there is no such encoder: models before Qwen3 do not
    /// normalize queries and keys, and those that see images have a part for that.
    pub fn read(source: &dyn ParamSource) -> Option<Self> {
        let has = |name: &str| source.info(name).is_some();
        let dialect = if has("model.layers.0.self_attn.q_norm.weight") && has("model.embed_tokens.weight") {
            QwenDialect::Transformers
        } else if has("blk.0.attn_q_norm.weight") && has("token_embd.weight") {
            QwenDialect::Gguf
        } else {
            return None;
        };
        if has("model.layers.0.pre_feedforward_layernorm.weight") || has("blk.0.post_ffw_norm.weight") {
            return None; // Gemma normalizes queries and keys too
        }
        let names = dialect.names();
        let shape = |key: &str| names.info(source, key).map(|info| info.shape);
        let rows = |key: &str| shape(&format!("{LAYERS}.0.{key}.weight"))?.first().copied();
        let [vocab_size, width] = shape(&format!("{TOKENS}.weight"))?.try_into().ok()?;
        let head_dim = rows("self_attn.q_norm").filter(|&head_dim| head_dim > 0)?;
        let count = |i: &usize| shape(&format!("{LAYERS}.{i}.mlp.down_proj.weight")).is_some();
        Some(Self {
            dialect,
            vocab_size,
            width,
            heads: rows("self_attn.q_proj")? / head_dim,
            kv_heads: rows("self_attn.k_proj")? / head_dim,
            head_dim,
            hidden: rows("mlp.gate_proj")?,
            layers: (0..MAX_LAYERS).take_while(count).count(),
        })
    }
}

impl QwenDialect {
    /// The names of a text encoder.
    pub fn names(self) -> Names {
        match self {
            Self::Transformers => same_names(),
            Self::Gguf => {
                let mut names = Names::default();
                names.add(TOKENS, "token_embd", &[]);
                names.add("model.norm", "output_norm", &[]);
                for i in 0..MAX_LAYERS {
                    names.add(format!("{LAYERS}.{i}"), format!("blk.{i}"), GGUF_LAYER);
                }
                names
            }
        }
    }
}
