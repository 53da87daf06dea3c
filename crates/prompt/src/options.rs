//! The options that decide how a text of a prompt is encoded.

use crate::{COMMA_BACKTRACK, ChunkCut, Emphasis};

/// The options of a request that decide how a text is cut into tokens and encoded. A kind of text encoder may ignore some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TextOptions {
    /// The effect of the weights of words.
    pub emphasis: Emphasis,
    /// The layer whose hidden state is used, counted from the last, which is 1. `None`: the model's own.
    pub clip_skip: Option<usize>,
    /// The rule for cutting a text that is longer than a chunk.
    pub chunk_cut: ChunkCut,
    /// The maximum number of tokens that a full chunk moves back to its last comma.
    pub comma_backtrack: usize,
}

impl TextOptions {
    /// The names of the options in a request.
    pub const NAMES: [&str; 4] = ["clip_skip", "emphasis", "chunk_cut", "comma_backtrack"];
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            emphasis: Emphasis::default(),
            clip_skip: None,
            chunk_cut: ChunkCut::default(),
            comma_backtrack: COMMA_BACKTRACK,
        }
    }
}
