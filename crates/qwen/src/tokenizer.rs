//! Qwen's tokenizer: text to token ids, as in transformers' `Qwen2Tokenizer` (version 5).
//!
//! The text is normalized (NFC), cut by a pattern, and each piece into tokens of bytes by merges (BPE). Special tokens in the text
//! become their ids.

mod build;
mod built_in;
mod separate_files;

use std::collections::BTreeMap;
use std::path::Path;

use kiln_weights::read_small_text;
use serde_json::Value;

use crate::error::{Error, Result, format_error};

pub use built_in::Generation;

/// The file of a tokenizer's folder that is read first.
pub const TOKENIZER_FILE: &str = "tokenizer.json";

/// The padding token.
const PAD: &str = "<|endoftext|>";
/// The token that stands for an image.
const IMAGE: &str = "<|image_pad|>";
/// The maximum size of the file in bytes. Qwen3's has 11 MB.
const MAX_BYTES: u64 = 64 << 20;
/// The limits are far above every real vocabulary: Qwen3's has 151,643 tokens of up to 128 bytes.
const MAX_TOKENS: usize = 1 << 20;
const MAX_TOKEN_BYTES: usize = 4096;

/// The chat that a prompt is a part of: the templates in `tokenizer_config.json`, with one message of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChatTemplate {
    /// The assistant answers next (`enable_thinking=True`): Z-Image.
    Thinking,
    /// The assistant has thought nothing (`enable_thinking=False`): FLUX.2 klein.
    NotThinking,
    /// A system message asks for a description of an image: Qwen-Image.
    Describing,
    /// A system message asks for the changes of an image: Qwen-Image-Edit.
    Editing,
}

/// The first message of [`ChatTemplate::Describing`], and the beginning of the second.
const DESCRIBING: &str = "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, \
    spatial relationships of the objects and background:<|im_end|>\n<|im_start|>user\n";

/// The first message of [`ChatTemplate::Editing`], and the beginning of the second.
const EDITING: &str = "<|im_start|>system\nDescribe the key features of the input image (color, shape, size, texture, objects, background), \
    then explain how the user's text instruction should alter or modify the image. Generate a new image that meets the user's \
    requirements while maintaining consistency with the original input where appropriate.<|im_end|>\n<|im_start|>user\n";

impl ChatTemplate {
    /// The texts before and after a prompt.
    fn parts(self) -> [&'static str; 2] {
        let end = match self {
            Self::Thinking | Self::Describing | Self::Editing => "<|im_end|>\n<|im_start|>assistant\n",
            Self::NotThinking => "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
        };
        let begin = match self {
            Self::Describing => DESCRIBING,
            Self::Editing => EDITING,
            Self::Thinking | Self::NotThinking => "<|im_start|>user\n",
        };
        [begin, end]
    }
}

/// The ids of a prompt in its template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ids {
    /// All ids that fit.
    pub ids: Vec<u32>,
    /// The number of ids of the prompt, also of those that do not fit.
    pub used: usize,
    /// The number of ids of a prompt that fit.
    pub room: usize,
    /// The end of the prompt that does not fit.
    pub cut: Option<String>,
}

/// A tokenizer of Qwen's kind.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    pad: u32,
    vocab_size: usize,
}

impl Tokenizer {
    /// Opens a tokenizer's folder: `tokenizer.json`, or `vocab.json` with `merges.txt` and `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`], [`Error::Io`] or [`Error::Format`] with the file and the problem.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::read(folder, &|name| {
            let path = folder.join(name);
            if !path.exists() {
                return Ok(None);
            }
            read_small_text(&path, MAX_BYTES).map(Some).map_err(|source| Error::Io { path, source })
        })
    }

    /// Like [`Self::open`], from the texts of the files. `origin` is their location for messages.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn from_texts(origin: &Path, texts: &BTreeMap<String, String>) -> Result<Self> {
        Self::read(origin, &|name| Ok(texts.get(name).cloned()))
    }

    fn read(folder: &Path, text: &dyn Fn(&str) -> Result<Option<String>>) -> Result<Self> {
        if let Some(text) = text(TOKENIZER_FILE)? {
            let path = folder.join(TOKENIZER_FILE);
            let file = serde_json::from_str(&text);
            let file = file.map_err(|error| format_error(&path, format!("is not a tokenizer: {error}")))?;
            return Self::of_file(&path, file);
        }
        let (Some(vocab), Some(merges)) = (text(separate_files::VOCAB)?, text(separate_files::MERGES)?) else {
            return Err(Error::NoTokenizer { folder: folder.to_path_buf() });
        };
        let config = text(separate_files::CONFIG)?.unwrap_or_default();
        let inner = separate_files::read(&|name| folder.join(name), [&vocab, &merges, &config])?;
        Self::of(inner, &folder.join(separate_files::VOCAB))
    }

    /// The tokenizer of the contents of `tokenizer.json`.
    fn of_file(path: &Path, mut file: Value) -> Result<Self> {
        let refused = |problem: String| format_error(path, problem);
        check(&file).map_err(refused)?;
        // The pipelines truncate and pad by themselves.
        if let Some(file) = file.as_object_mut() {
            for key in ["truncation", "padding"] {
                file.insert(key.into(), Value::Null);
            }
        }
        let inner: tokenizers::Tokenizer =
            serde_json::from_value(file).map_err(|error| refused(format!("cannot be used: {error}")))?;
        Self::of(inner, path)
    }

    fn of(inner: tokenizers::Tokenizer, path: &Path) -> Result<Self> {
        let missing = || format_error(path, format!("has no token `{PAD}`, expected a tokenizer of Qwen"));
        let pad = inner.token_to_id(PAD).ok_or_else(missing)?;
        let vocab_size = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        Ok(Self { inner, pad, vocab_size })
    }

    /// The ids of `prompt` in `template`, at most `length`: of a long text the end is cut off, and thereby that of the template
    /// too, as in diffusers' pipelines.
    ///
    /// # Errors
    /// [`Error::Tokenize`] if the `tokenizers` crate fails.
    pub fn encode(&self, prompt: &str, template: ChatTemplate, length: usize) -> Result<Ids> {
        self.encode_behind("", prompt, template, length)
    }

    /// Like [`Self::encode`] with the text `first` before the prompt, whose tokens `length` does not count.
    ///
    /// # Errors
    /// See [`Self::encode`].
    pub fn encode_behind(&self, first: &str, prompt: &str, template: ChatTemplate, length: usize) -> Result<Ids> {
        let [begin, after] = template.parts();
        let before = format!("{begin}{first}");
        let failed = |error: tokenizers::Error| Error::Tokenize(error.to_string());
        let encoding = self.inner.encode(format!("{before}{prompt}{after}"), false).map_err(failed)?;
        let frame =
            |text: &str| self.inner.encode_fast(text, false).map(|encoding| encoding.get_ids().len()).map_err(failed);
        let (own, begin, end) = (frame(begin)?, frame(&before)?, frame(after)?);
        let length = length.saturating_add(begin.saturating_sub(own));
        let mut ids = encoding.get_ids().to_vec();
        let used = ids.len().saturating_sub(begin + end);
        let cut = encoding.get_offsets().get(length).and_then(|offsets| {
            let first = offsets.0.checked_sub(before.len())?;
            Some(prompt.get(first..)?.trim().to_string()).filter(|cut| !cut.is_empty())
        });
        ids.truncate(length);
        Ok(Ids { ids, used, room: length.saturating_sub(begin), cut })
    }

    /// The id of a token that stands for an image; `None` if there is none.
    pub fn image_token(&self) -> Option<u32> {
        self.inner.token_to_id(IMAGE)
    }

    /// The id that follows a text.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// The largest id plus one: the number of rows that an encoder's token table needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}

/// The problem of a file that the `tokenizers` crate is not to read.
fn check(file: &Value) -> std::result::Result<(), String> {
    let model = &file["model"];
    if model["type"] != "BPE" {
        let kind = model["type"].as_str().unwrap_or("unknown");
        return Err(format!("is a tokenizer of type {kind}, expected BPE, Qwen's type"));
    }
    let Some(vocab) = model["vocab"].as_object() else { return Err("has no vocabulary".into()) };
    let added = file["added_tokens"].as_array().map(Vec::as_slice).unwrap_or_default();
    let contents = added.iter().map(|token| token["content"].as_str().unwrap_or_default());
    check_tokens(&vocab.keys().map(String::as_str).collect::<Vec<_>>(), &contents.collect::<Vec<_>>())
}

/// The problem of tokens, and of tokens that are added to them, whose number or length is impossible.
fn check_tokens(vocab: &[&str], added: &[&str]) -> std::result::Result<(), String> {
    if vocab.is_empty() || vocab.len() > MAX_TOKENS || added.len() > MAX_TOKENS {
        return Err(format!("has {} tokens, expected 1 to {MAX_TOKENS}", vocab.len()));
    }
    if let Some(long) = vocab.iter().chain(added).find(|text| text.len() > MAX_TOKEN_BYTES) {
        return Err(format!("has a token of {} bytes, expected at most {MAX_TOKEN_BYTES}", long.len()));
    }
    Ok(())
}
