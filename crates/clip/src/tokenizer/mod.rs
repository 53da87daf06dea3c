//! CLIP's tokenizer: text to token ids, as in transformers' `CLIPTokenizer` (version 5).
//!
//! The text is normalized (NFC, white space to single spaces, lower case) and cut into words by a regular expression.
//! Each word is converted to bytes, which a byte-pair encoding merges to tokens. Special tokens in the text become
//! their ids.

mod clip;
mod files;
mod settings;
mod token;
mod vocabulary;

use std::collections::BTreeMap;
use std::path::Path;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::{Lowercase, NFC, Replace, Sequence as Normalizers, replace::ReplacePattern};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as PreTokenizers;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{NormalizerWrapper, SplitDelimiterBehavior};

use crate::error::{Error, Result, format_error};
use crate::textual_inversion::TokenEmbeddings;
pub use clip::ClipPadding;
use files::Files;
use settings::Settings;
use token::Token;
use vocabulary::{END_OF_WORD, Vocabulary};

/// The pattern of a word.
const WORD: &str = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";

/// The limit is far above every real vocabulary (CLIP's has 49408 tokens) and far below the overflow of ids.
const LARGEST_ID: u32 = 1 << 24;

/// The files of a tokenizer's folder that are read.
pub const TOKENIZER_FILES: [&str; 6] = [
    "tokenizer.json",
    "vocab.json",
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
];

/// A CLIP tokenizer.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    bos: u32,
    eos: u32,
    pad: u32,
    comma: Option<u32>,
    max_length: usize,
    vocab_size: usize,
}

impl Tokenizer {
    /// Opens a tokenizer's folder: `tokenizer.json`, or `vocab.json` with `merges.txt`; also `tokenizer_config.json`,
    /// `special_tokens_map.json` and `added_tokens.json`, each of which may be missing.
    ///
    /// # Errors
    /// [`Error::NoTokenizer`], [`Error::Io`] or [`Error::Format`] with the file and the problem.
    pub fn open(folder: &Path) -> Result<Self> {
        Self::read(&Files::Folder(folder))
    }

    /// Like [`Self::open`], from the texts of these files by name. `origin` is their location for messages.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn from_texts(origin: &Path, texts: &BTreeMap<String, String>) -> Result<Self> {
        Self::read(&Files::Texts { origin, texts })
    }

    fn read(files: &Files<'_>) -> Result<Self> {
        let vocabulary = Vocabulary::open(files)?;
        let settings = Settings::open(files, &vocabulary)?;
        Self::of(vocabulary, &settings)
    }

    /// Whether `other` returns the same ids and the same padding for every text.
    pub fn is_same_as(&self, other: &Self) -> bool {
        let ends = |tokenizer: &Self| (tokenizer.bos, tokenizer.eos, tokenizer.pad, tokenizer.max_length);
        let rules = |tokenizer: &Self| serde_json::to_value(&tokenizer.inner).ok();
        ends(self) == ends(other) && rules(self).is_some_and(|rules_of_self| Some(rules_of_self) == rules(other))
    }

    /// CLIP's own tokenizer, which is built into the program, because single-file checkpoints do not contain one.
    ///
    /// # Errors
    /// None with the built-in tables.
    pub fn clip(padding: ClipPadding) -> Result<Self> {
        let vocabulary = Vocabulary::clip()?;
        let settings = Settings::clip(padding.token(), &vocabulary)?;
        Self::of(vocabulary, &settings)
    }

    fn of(vocabulary: Vocabulary, settings: &Settings) -> Result<Self> {
        let path = vocabulary.path.clone();
        let format_error = |problem: String| format_error(&path, problem);
        if let Some(id) = vocabulary.ids.values().chain(settings.added.keys()).find(|&&id| id > LARGEST_ID) {
            return Err(format_error(format!("has a token with id {id}, expected at most {LARGEST_ID}")));
        }
        // A token outside the vocabulary would get a new id, for which no encoder has a row.
        for (name, token) in settings.named() {
            let added = name != "unknown" && settings.added.values().any(|added| added.content() == token.content());
            if !added && !vocabulary.ids.contains_key(token.content()) {
                return Err(format_error(format!("has no token `{}`, the {name} token", token.content())));
            }
        }
        let inner = build(vocabulary, settings).map_err(|error| format_error(format!("cannot be used: {error}")))?;
        let id = |token: &Token| inner.token_to_id(token.content());
        for (&wanted, token) in &settings.added {
            if id(token) != Some(wanted) {
                let found = id(token).map_or("none".into(), |id| id.to_string());
                return Err(format_error(format!(
                    "gives the added token `{}` the id {found}, but the other files give it {wanted}",
                    token.content()
                )));
            }
        }
        let [bos, eos, pad] = [&settings.bos, &settings.eos, &settings.pad].map(|token| id(token).unwrap_or_default());
        let vocab_size = inner.get_vocab(true).into_values().max().map_or(0, |id| id as usize + 1);
        let comma = inner.token_to_id(&format!(",{END_OF_WORD}"));
        Ok(Self { bos, eos, pad, comma, max_length: settings.max_length, vocab_size, inner })
    }

    /// The ids of `text` in chunks of equal length, [`Self::max_length`]: a begin token, at most `max_length - 2` of
    /// the text's tokens, an end token, padding. No token is dropped; an empty text is one chunk.
    pub fn chunks(&self, text: &str) -> Result<Vec<Vec<u32>>> {
        let ids = self.encode(text)?;
        if ids.is_empty() {
            return Ok(vec![self.empty_chunk()]);
        }
        Ok(ids.chunks(self.max_length - 2).map(|ids| self.frame(ids)).collect())
    }

    /// The chunk of an empty text.
    pub fn empty_chunk(&self) -> Vec<u32> {
        self.frame(&[])
    }

    /// All ids of `text`, without begin and end.
    ///
    /// # Errors
    /// [`Error::Tokenize`] if the `tokenizers` crate fails.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(|error| Error::Tokenize(error.to_string()))?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The ids of `text`, where names of `words` are replaced with their ids.
    ///
    /// # Errors
    /// [`Error::Tokenize`] if the `tokenizers` crate fails.
    pub fn encode_with(&self, text: &str, words: &TokenEmbeddings) -> Result<Vec<u32>> {
        let (mut ids, mut rest) = (Vec::new(), text);
        while let Some((place, word)) = words.find(rest) {
            ids.extend(self.encode(&rest[..place.start])?);
            ids.extend(word);
            rest = &rest[place.end..];
        }
        ids.extend(self.encode(rest)?);
        Ok(ids)
    }

    /// The largest id plus one: the number of rows that an encoder's token table needs.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The length of a chunk: 77, or the value in the files.
    pub fn max_length(&self) -> usize {
        self.max_length
    }

    /// The id at the start of a chunk.
    pub fn bos(&self) -> u32 {
        self.bos
    }

    /// The id after a chunk's text.
    pub fn eos(&self) -> u32 {
        self.eos
    }

    /// The id that fills a chunk.
    pub fn pad(&self) -> u32 {
        self.pad
    }

    /// The id of a comma that ends a word, if the vocabulary has one.
    pub(crate) fn comma(&self) -> Option<u32> {
        self.comma
    }

    /// Frames ids: begin, ids, end, padding.
    pub(crate) fn frame(&self, ids: &[u32]) -> Vec<u32> {
        let mut chunk = Vec::with_capacity(self.max_length);
        chunk.push(self.bos);
        chunk.extend(ids);
        chunk.push(self.eos);
        chunk.resize(self.max_length, self.pad);
        chunk
    }
}

/// Builds the same tokenizer as transformers.
fn build(vocabulary: Vocabulary, settings: &Settings) -> tokenizers::Result<tokenizers::Tokenizer> {
    let model = BPE::builder()
        .vocab_and_merges(vocabulary.ids.into_iter().collect::<tokenizers::models::bpe::Vocab>(), vocabulary.merges)
        .continuing_subword_prefix(String::new())
        .end_of_word_suffix(END_OF_WORD.into())
        .unk_token(settings.unk.0.content.clone())
        .build()?;
    let mut tokenizer = tokenizers::Tokenizer::new(model);

    let spaces = Replace::new(ReplacePattern::Regex(r"\s+".into()), " ")?;
    let mut normalizers: Vec<NormalizerWrapper> = vec![NFC.into(), spaces.into()];
    if settings.lower_case {
        normalizers.push(Lowercase.into());
    }
    tokenizer.with_normalizer(Some(Normalizers::new(normalizers)))?;
    let words = Split::new(SplitPattern::Regex(WORD.into()), SplitDelimiterBehavior::Removed, true)?;
    let bytes = ByteLevel::new(false, true, true);
    tokenizer.with_pre_tokenizer(Some(PreTokenizers::new(vec![words.into(), bytes.into()])));

    // Of two entries for one token, the later one defines how it is matched. The order is transformers'.
    tokenizer.add_tokens(settings.added.values().map(|token| token.0.clone()))?;
    tokenizer.add_special_tokens(settings.named().map(|(_, token)| token.0.clone().special(true)))?;
    Ok(tokenizer)
}
