//! A Unigram tokenizer in `tokenizer.json`.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::AddedToken;

use super::charsmap;
use super::files::Files;
use super::vocabulary::{JSON, Vocabulary};
use crate::error::{Result, format_error};

#[derive(Deserialize)]
struct File {
    model: Model,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    added_tokens: Vec<Added>,
}

#[derive(Deserialize)]
struct Model {
    vocab: Vec<(String, f64)>,
    unk_id: Option<usize>,
    #[serde(default)]
    byte_fallback: bool,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
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
}

impl From<Added> for (u32, AddedToken) {
    fn from(added: Added) -> Self {
        let Added { id, content, single_word, lstrip, rstrip, normalized, special } = added;
        (id, AddedToken { content, single_word, lstrip, rstrip, normalized, special })
    }
}

impl Vocabulary {
    /// Reads `tokenizer.json`. What follows the model in it (post-processing, truncation, padding) is not used: the end token and
    /// padding are those of T5.
    pub(super) fn from_json(files: &Files<'_>) -> Result<Self> {
        let path = files.path(JSON);
        let refused = |problem: String| format_error(&path, problem);
        let invalid = |error: serde_json::Error| refused(format!("is not a tokenizer of T5's type: {error}"));
        let value: Value = serde_json::from_str(&files.text(JSON)?).map_err(invalid)?;
        let kind = &value["model"]["type"];
        if kind != "Unigram" {
            let kind = kind.as_str().unwrap_or("unknown");
            return Err(refused(format!("is a tokenizer of type {kind}, expected Unigram, T5's type")));
        }
        let File { model, normalizer, pre_tokenizer, added_tokens } = serde_json::from_value(value).map_err(invalid)?;
        charsmap::check_json(&normalizer).map_err(refused)?;
        Ok(Self {
            pieces: model.vocab,
            unknown: model.unk_id,
            byte_fallback: model.byte_fallback,
            normalizer: serde_json::from_value(normalizer).map_err(invalid)?,
            pre_tokenizer: serde_json::from_value(pre_tokenizer).map_err(invalid)?,
            added: added_tokens.into_iter().map(Into::into).collect(),
            path,
        })
    }
}
