//! T5's tokenizer: text to token ids, as in transformers' `T5Tokenizer` (version 5).
//!
//! The text is normalized by a table (NFKC with exceptions; letters keep their case), cut into words at white space, and each word
//! into the pieces with the largest sum of scores (Unigram; Kudo, arXiv 1804.10959). Special tokens in the text become their ids.

mod built_in;
mod charsmap;
mod files;
mod json;
mod protobuf;
mod sentencepiece;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{Error, Result, format_error};
use files::Files;
use vocabulary::Vocabulary;

/// T5's end and padding tokens.
const END: &str = "</s>";
const PAD: &str = "<pad>";

/// The files of a tokenizer's folder that are read. `spiece.model` is not text.
pub const TOKENIZER_FILES: [&str; 3] = [vocabulary::JSON, vocabulary::SENTENCEPIECE, "tokenizer_config.json"];

/// A T5 tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    end: u32,
    pad: u32,
    vocab_size: usize,
}

impl Tokenizer {
    /// Opens a tokenizer's folder: `tokenizer.json`, or `spiece.model` with or without `tokenizer_config.json`.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`], [`Error::Io`] or [`Error::Format`] with the file and the problem.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::read(&Files::Folder(folder))
    }

    /// Like [`Self::open`], from the text of `tokenizer.json`. `origin` is the location of the texts for messages.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn from_texts(origin: &Path, texts: &BTreeMap<String, String>) -> Result<Self> {
        Self::read(&Files::Texts { origin, texts })
    }

    fn read(files: &Files<'_>) -> Result<Self> {
        Self::of(Vocabulary::open(files)?)
    }

    fn of(vocabulary: Vocabulary) -> Result<Self> {
        let path = vocabulary.path.clone();
        let inner = vocabulary.build()?;
        let id = |token: &str| {
            let missing = || format_error(&path, format!("has no token `{token}`, expected a tokenizer of T5"));
            inner.token_to_id(token).ok_or_else(missing)
        };
        let (end, pad) = (id(END)?, id(PAD)?);
        let vocab_size = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        Ok(Self { inner, end, pad, vocab_size })
    }

    /// All ids of `text`, without the end token.
    ///
    /// # Errors
    /// [`Error::Tokenize`] if the `tokenizers` crate fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(|error| Error::Tokenize(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The end of `text` from its token `first` on, counted from 0: what is left when the tokens before are removed.
    ///
    /// # Errors
    /// See [`Self::encode`].
    pub fn text_from<'a>(&self, text: &'a str, first: usize) -> Result<&'a str> {
        let encoding = self.inner.encode(text, false).map_err(|error| Error::Tokenize(error.to_string()))?;
        let start = encoding.get_offsets().get(first).map_or(text.len(), |offsets| offsets.0);
        Ok(text.get(start..).unwrap_or_default())
    }

    /// Frames ids to `length` tokens, at least 1: as many ids as fit, the end token, padding.
    pub fn frame(&self, ids: &[u32], length: usize) -> Vec<u32> {
        let mut framed: Vec<u32> = ids.iter().copied().take(length.saturating_sub(1)).collect();
        framed.push(self.end);
        framed.resize(length.max(1), self.pad);
        framed
    }

    /// The id at the end of a text.
    pub fn end(&self) -> u32 {
        self.end
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
