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
}

impl ChunkCut {
    /// Its name on a command line.
    pub fn id(self) -> &'static str {
        match self {
            Self::Comma => "comma",
            Self::Word => "word",
        }
    }
}

impl FromStr for ChunkCut {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let all = [Self::Comma, Self::Word];
        all.into_iter().find(|cut| cut.id() == text).ok_or_else(|| "expected comma or word".into())
    }
}
