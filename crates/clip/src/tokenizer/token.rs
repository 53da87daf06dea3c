//! A special or added token, as tokenizer files describe it.

use serde::Deserialize;

/// A token that is found in a text before the text is cut into words.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "TokenEntry")]
pub(super) struct Token(pub(super) tokenizers::AddedToken);

impl Token {
    pub(super) fn content(&self) -> &str {
        &self.0.content
    }
}

/// The forms in which files write a token: its text alone, or with its matching options.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenEntry {
    Text(String),
    Full {
        content: String,
        #[serde(default)]
        single_word: bool,
        #[serde(default)]
        lstrip: bool,
        #[serde(default)]
        rstrip: bool,
        #[serde(default)]
        normalized: bool,
        #[serde(default)]
        special: bool,
    },
}

impl From<TokenEntry> for Token {
    fn from(entry: TokenEntry) -> Self {
        Self(match entry {
            TokenEntry::Text(content) => tokenizers::AddedToken::from(content, true),
            TokenEntry::Full { content, single_word, lstrip, rstrip, normalized, special } => {
                tokenizers::AddedToken { content, single_word, lstrip, rstrip, normalized, special }
            }
        })
    }
}

impl From<&str> for Token {
    fn from(text: &str) -> Self {
        TokenEntry::Text(text.to_string()).into()
    }
}
