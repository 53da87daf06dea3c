//! The parts of a Unigram tokenizer, from either of two formats, and their checks.

use std::path::PathBuf;

use tokenizers::models::unigram::Unigram;
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper};

use super::files::Files;
use crate::error::{Error, Result, format_error};

pub(super) const JSON: &str = "tokenizer.json";
pub(super) const SENTENCEPIECE: &str = "spiece.model";

/// The limits are far above every real vocabulary (mT5's has 250,100 pieces of up to 16 letters). The `tokenizers` crate holds a
/// piece as nested nodes, so that a long one would overflow the stack.
const MAX_PIECES: usize = 1 << 20;
const MAX_PIECE_BYTES: usize = 512;

/// Pieces with their scores, and how a text is cut.
pub(super) struct Vocabulary {
    /// The file.
    pub(super) path: PathBuf,
    /// In the order of their ids.
    pub(super) pieces: Vec<(String, f64)>,
    /// The id for letters without a piece.
    pub(super) unknown: Option<usize>,
    /// Whether such letters become the pieces of their bytes.
    pub(super) byte_fallback: bool,
    pub(super) normalizer: Option<NormalizerWrapper>,
    pub(super) pre_tokenizer: Option<PreTokenizerWrapper>,
    /// Tokens that are found in a text before it is cut, with their ids.
    pub(super) added: Vec<(u32, AddedToken)>,
}

impl Vocabulary {
    /// Reads `tokenizer.json`, which transformers prefers too, or else `spiece.model`.
    pub(super) fn open(files: &Files<'_>) -> Result<Self> {
        match [JSON, SENTENCEPIECE].map(|name| files.has(name)) {
            [true, _] => Self::from_json(files),
            [_, true] => Self::from_sentencepiece(files),
            _ => Err(Error::NoTokenizer { folder: files.folder().to_path_buf() }),
        }
    }

    /// The tokenizer of the `tokenizers` crate.
    pub(super) fn build(self) -> Result<tokenizers::Tokenizer> {
        let path = self.path.clone();
        self.check().map_err(|problem| format_error(&path, problem))?;
        let added = self.added.clone();
        let inner = self.built().map_err(|error| format_error(&path, format!("cannot be used: {error}")))?;
        for (wanted, AddedToken { content, .. }) in added {
            if inner.token_to_id(&content) != Some(wanted) {
                let problem = format!("gives the added token `{content}` the id {wanted}, which is not free");
                return Err(format_error(&path, problem));
            }
        }
        Ok(inner)
    }

    fn built(self) -> tokenizers::Result<tokenizers::Tokenizer> {
        let Self { pieces, unknown, byte_fallback, normalizer, pre_tokenizer, mut added, .. } = self;
        let mut tokenizer = tokenizers::Tokenizer::new(Unigram::from(pieces, unknown, byte_fallback)?);
        tokenizer.with_normalizer(normalizer)?;
        tokenizer.with_pre_tokenizer(pre_tokenizer);
        added.sort_by_key(|(id, _)| *id); // new ones get the ids behind the vocabulary in this order
        for (_, token) in added {
            match token.special {
                true => tokenizer.add_special_tokens([token])?,
                false => tokenizer.add_tokens([token])?,
            };
        }
        Ok(tokenizer)
    }

    fn check(&self) -> std::result::Result<(), String> {
        let Self { pieces, unknown, added, .. } = self;
        if pieces.is_empty() || pieces.len() > MAX_PIECES || added.len() > MAX_PIECES {
            return Err(format!("has {} pieces, expected 1 to {MAX_PIECES}", pieces.len()));
        }
        let texts = pieces.iter().map(|(piece, _)| piece).chain(added.iter().map(|(_, token)| &token.content));
        if let Some(long) = texts.into_iter().find(|text| text.len() > MAX_PIECE_BYTES) {
            return Err(format!("has a piece of {} bytes, expected at most {MAX_PIECE_BYTES}", long.len()));
        }
        if let Some((piece, score)) = pieces.iter().find(|(_, score)| !score.is_finite()) {
            return Err(format!("has the piece `{piece}` with the score {score}, expected a number"));
        }
        if unknown.is_none_or(|id| id >= pieces.len()) {
            return Err("has no unknown token among its pieces, expected T5's `<unk>`".into());
        }
        Ok(())
    }
}
