//! The rules for cutting a text that is longer than an encoder's chunk.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The default of AUTOMATIC1111: the maximum number of tokens that a full chunk moves back to its last comma.
pub const COMMA_BACKTRACK: usize = 20;

/// The rule for cutting a text with more tokens than fit into a chunk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChunkCut {
    /// After the last comma if it is near, else where the chunk is full: AUTOMATIC1111's.
    #[default]
    Comma,
    /// Before the word that does not fit, unless it has 8 tokens or more: ComfyUI's.
    Word,
    /// The text has one chunk, and what does not fit is cut off: diffusers'.
    Truncate,
}

impl ChunkCut {
    /// All rules, in the order of help texts.
    pub const ALL: [Self; 3] = [Self::Comma, Self::Word, Self::Truncate];

    /// Its name on a command line.
    pub fn id(self) -> &'static str {
        match self {
            Self::Comma => "comma",
            Self::Word => "word",
            Self::Truncate => "truncate",
        }
    }
}

impl FromStr for ChunkCut {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        Self::ALL.into_iter().find(|cut| cut.id() == text).ok_or_else(|| "expected comma, word or truncate".into())
    }
}
