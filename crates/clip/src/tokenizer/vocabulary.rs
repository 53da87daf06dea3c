//! The vocabulary of a byte-pair encoding and its merges, from either of two formats.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use super::files::Files;
use super::token::Token;
use crate::error::{Error, Result, format_error};

const WHOLE: &str = "tokenizer.json";
const VOCAB: &str = "vocab.json";
const MERGES: &str = "merges.txt";

/// The suffix of the last token of a word.
pub(super) const END_OF_WORD: &str = "</w>";

/// Tokens with their ids, and the pairs of tokens to merge, in order of priority.
pub(super) struct Vocabulary {
    /// The file with the tokens.
    pub(super) path: PathBuf,
    pub(super) ids: HashMap<String, u32>,
    pub(super) merges: Vec<(String, String)>,
    /// The other contents of a `tokenizer.json`.
    pub(super) extras: Option<Extras>,
}

/// The parts of a `tokenizer.json` that the other format stores in `tokenizer_config.json`.
#[derive(Debug, Default)]
pub(super) struct Extras {
    pub(super) bos: Option<String>,
    pub(super) eos: Option<String>,
    pub(super) unk: Option<String>,
    pub(super) pad: Option<String>,
    pub(super) added: Vec<(u32, Token)>,
    pub(super) lower_case: Option<bool>,
}

impl Vocabulary {
    /// Reads `tokenizer.json`, which transformers prefers too, or else `vocab.json` and `merges.txt`.
    pub(super) fn open(files: &Files<'_>) -> Result<Self> {
        match [WHOLE, VOCAB, MERGES].map(|name| files.has(name)) {
            [true, ..] => Self::from_tokenizer_json(files),
            [_, true, true] => Self::from_two_files(files),
            [_, false, false] => Err(Error::NoTokenizer { folder: files.folder().to_path_buf() }),
            [_, has_vocab, _] => {
                let missing = files.path(if has_vocab { MERGES } else { VOCAB });
                Err(format_error(&missing, "not found; looked for tokenizer.json, or vocab.json with merges.txt"))
            }
        }
    }

    fn from_two_files(files: &Files<'_>) -> Result<Self> {
        let (path, merges_path) = (files.path(VOCAB), &files.path(MERGES));
        let ids: HashMap<String, u32> = serde_json::from_str(&files.text(VOCAB)?).map_err(|error| {
            format_error(&path, format!("is not a vocabulary, expected an object of tokens with their ids: {error}"))
        })?;
        let text = files.text(MERGES)?;
        let mut merges = Vec::new();
        for (number, line) in text.trim_end().lines().enumerate() {
            if line.starts_with("#version") {
                continue;
            }
            let place = format!("line {}", number + 1);
            merges.push(merge(line, &place, &ids, &path).map_err(|problem| format_error(merges_path, problem))?);
        }
        if merges.is_empty() {
            return Err(format_error(merges_path, "has no merges; it may be cut off, download it again"));
        }
        Ok(Self { path, ids, merges, extras: None })
    }

    fn from_tokenizer_json(files: &Files<'_>) -> Result<Self> {
        let path = files.path(WHOLE);
        let file: TokenizerJson = serde_json::from_str(&files.text(WHOLE)?)
            .map_err(|error| format_error(&path, format!("is not a tokenizer of CLIP's type: {error}")))?;
        let extras = file.extras();
        let Model { kind, vocab: ids, merges, end_of_word_suffix, .. } = file.model;
        let suffix = end_of_word_suffix.as_deref().unwrap_or("");
        if kind.as_deref().unwrap_or("BPE") != "BPE" || suffix != END_OF_WORD {
            let problem = format!(
                "is a {} tokenizer with the end-of-word suffix `{suffix}`, expected BPE with `{END_OF_WORD}`, CLIP's type",
                kind.as_deref().unwrap_or("BPE"),
            );
            return Err(format_error(&path, problem));
        }
        let merges = merges.into_iter().enumerate().map(|(number, entry)| {
            let line = match entry {
                Merge::Pair(a, b) => format!("{a} {b}"),
                Merge::Line(line) => line,
            };
            merge(&line, &format!("merge {}", number + 1), &ids, &path)
        });
        let merges = merges.collect::<Parsed<_>>().map_err(|problem| format_error(&path, problem))?;
        Ok(Self { path, ids, merges, extras: Some(extras) })
    }
}

/// The parsed value, or the problem.
type Parsed<T> = std::result::Result<T, String>;

/// Parses one merge. The `tokenizers` crate panics if a merge's result is longer than all tokens, so everything is
/// checked here.
fn merge(line: &str, place: &str, ids: &HashMap<String, u32>, vocab: &Path) -> Parsed<(String, String)> {
    let Some((a, b)) = line.split_once(' ').filter(|(a, b)| !a.is_empty() && !b.is_empty() && !b.contains(' ')) else {
        return Err(format!("{place} is `{line}`, expected two tokens with a space between"));
    };
    match [a, b, &format!("{a}{b}")].into_iter().find(|&token| !ids.contains_key(token)) {
        None => Ok((a.to_string(), b.to_string())),
        Some(token) => {
            let vocab = vocab.file_name().unwrap_or_default().display();
            Err(format!("{place} merges `{a}` and `{b}`, but `{token}` is not in the vocabulary of {vocab}"))
        }
    }
}

#[derive(Deserialize)]
struct TokenizerJson {
    model: Model,
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    post_processor: Value,
    #[serde(default)]
    padding: Value,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    end_of_word_suffix: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    #[serde(flatten)]
    token: Token,
}

impl TokenizerJson {
    fn extras(&self) -> Extras {
        let text = |value: &Value| value.as_str().map(String::from);
        Extras {
            // `RobertaProcessing` inserts `cls` before a text and `sep` after it.
            bos: text(&self.post_processor["cls"][0]),
            eos: text(&self.post_processor["sep"][0]),
            unk: self.model.unk_token.clone(),
            pad: text(&self.padding["pad_token"]),
            added: self.added_tokens.iter().map(|added| (added.id, added.token.clone())).collect(),
            lower_case: (!self.normalizer.is_null()).then(|| has_lowercase(&self.normalizer)),
        }
    }
}

fn has_lowercase(normalizer: &Value) -> bool {
    let parts = normalizer["normalizers"].as_array();
    normalizer["type"] == "Lowercase" || parts.is_some_and(|parts| parts.iter().any(has_lowercase))
}
