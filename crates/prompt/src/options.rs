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
    /// The number of tokens of a T5 text encoder, with its padding. `None`: the model's own.
    pub max_length: Option<usize>,
}

impl TextOptions {
    /// The names of the options in a request.
    pub const NAMES: [&str; 5] = ["clip_skip", "emphasis", "chunk_cut", "comma_backtrack", "max_length"];

    /// The options that differ from their defaults, by name and as text.
    pub fn changed(&self) -> Vec<(&'static str, String)> {
        let [clip_skip, emphasis, chunk_cut, comma_backtrack, max_length] = Self::NAMES;
        let usual = Self::default();
        let skip = self.clip_skip.map(|skip| (clip_skip, skip.to_string()));
        let weights = (self.emphasis != usual.emphasis).then(|| (emphasis, self.emphasis.id().into()));
        let cut = (self.chunk_cut != usual.chunk_cut).then(|| (chunk_cut, self.chunk_cut.id().into()));
        let commas = (self.comma_backtrack != usual.comma_backtrack)
            .then(|| (comma_backtrack, self.comma_backtrack.to_string()));
        let length = self.max_length.map(|length| (max_length, length.to_string()));
        [skip, weights, cut, commas, length].into_iter().flatten().collect()
    }
}

impl Default for TextOptions {
    fn default() -> Self {
        Self {
            emphasis: Emphasis::default(),
            clip_skip: None,
            chunk_cut: ChunkCut::default(),
            comma_backtrack: COMMA_BACKTRACK,
            max_length: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_differ_are_named() {
        assert!(TextOptions::default().changed().is_empty());
        let all = TextOptions {
            emphasis: Emphasis::Comfy,
            clip_skip: Some(2),
            chunk_cut: ChunkCut::Word,
            comma_backtrack: 0,
            max_length: Some(77),
        };
        let values = ["2", "comfy", "word", "0", "77"].map(String::from);
        assert_eq!(all.changed(), TextOptions::NAMES.into_iter().zip(values).collect::<Vec<_>>());
    }
}
