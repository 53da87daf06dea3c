//! The tokenizers of text encoders, in files or in the program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kiln_clip::ClipPadding;
use kiln_qwen::Generation;

use crate::component::ComponentKind;
use crate::error::{Error, Result};

/// The location of a tokenizer.
#[derive(Debug, Clone)]
pub enum TokenizerFiles {
    /// In a folder of its own.
    Folder(PathBuf),
    /// In the notes of a file.
    Kept {
        /// The file.
        origin: PathBuf,
        /// The texts by file name.
        texts: BTreeMap<String, String>,
    },
    /// In the program.
    BuiltIn(BuiltInTokenizer),
}

/// A tokenizer that is in the program, for single files, which contain none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuiltInTokenizer {
    /// CLIP's.
    Clip(ClipPadding),
    /// The one of T5 version 1.1.
    T5,
    /// The one of Qwen2 or Qwen3.
    Qwen(Generation),
}

impl TokenizerFiles {
    /// Reads a tokenizer of T5.
    ///
    /// # Errors
    /// Errors of [`kiln_t5::Tokenizer::open`].
    pub fn t5(&self) -> Result<kiln_t5::Tokenizer> {
        Ok(match self {
            Self::Folder(folder) => kiln_t5::Tokenizer::open(folder)?,
            Self::Kept { origin, texts } => kiln_t5::Tokenizer::from_texts(origin, texts)?,
            Self::BuiltIn(BuiltInTokenizer::T5) => kiln_t5::Tokenizer::built_in()?,
            Self::BuiltIn(other) => return Err(Error::OtherTokenizer { found: other.label(), expected: "T5" }),
        })
    }

    /// Reads a tokenizer of Qwen2 or Qwen3.
    ///
    /// # Errors
    /// Errors of [`kiln_qwen::Tokenizer::open`].
    pub fn qwen(&self) -> Result<kiln_qwen::Tokenizer> {
        Ok(match self {
            Self::Folder(folder) => kiln_qwen::Tokenizer::open(folder)?,
            Self::Kept { origin, texts } => kiln_qwen::Tokenizer::from_texts(origin, texts)?,
            Self::BuiltIn(BuiltInTokenizer::Qwen(generation)) => kiln_qwen::Tokenizer::built_in(*generation)?,
            Self::BuiltIn(other) => return Err(Error::OtherTokenizer { found: other.label(), expected: "Qwen" }),
        })
    }

    /// Reads a tokenizer of CLIP.
    ///
    /// # Errors
    /// Errors of [`kiln_clip::Tokenizer::open`].
    pub fn clip(&self) -> Result<kiln_clip::Tokenizer> {
        Ok(match self {
            Self::Folder(folder) => kiln_clip::Tokenizer::open(folder)?,
            Self::Kept { origin, texts } => kiln_clip::Tokenizer::from_texts(origin, texts)?,
            Self::BuiltIn(BuiltInTokenizer::Clip(padding)) => kiln_clip::Tokenizer::clip(*padding)?,
            Self::BuiltIn(other) => return Err(Error::OtherTokenizer { found: other.label(), expected: "CLIP" }),
        })
    }
}

/// The files of a tokenizer as texts, if `folder` has it in `spiece.model` alone, which is not text: names and contents.
///
/// # Errors
/// Errors of [`kiln_t5::Tokenizer::open`].
pub fn sentencepiece_as_texts(folder: &Path) -> Result<Option<[(&'static str, String); 2]>> {
    let [json, sentencepiece, _] = kiln_t5::TOKENIZER_FILES.map(|name| folder.join(name).exists());
    if json || !sentencepiece {
        return Ok(None);
    }
    Ok(Some(kiln_t5::Tokenizer::open(folder)?.files()?))
}

impl BuiltInTokenizer {
    /// The tokenizer of the official text encoders of `kind`, of CLIP with `padding`, of language models that of Qwen3. `None` for
    /// networks without one.
    pub fn of(kind: ComponentKind, padding: ClipPadding) -> Option<Self> {
        match kind {
            ComponentKind::Clip => Some(Self::Clip(padding)),
            ComponentKind::T5 => Some(Self::T5),
            ComponentKind::LanguageModel => Some(Self::Qwen(Generation::Qwen3)),
            ComponentKind::Unet | ComponentKind::Transformer | ComponentKind::Vae => None,
        }
    }

    /// Its name in messages.
    pub fn label(self) -> &'static str {
        match self {
            Self::Clip(_) => "CLIP",
            Self::T5 => "T5",
            Self::Qwen(_) => "Qwen",
        }
    }

    /// The largest id plus one: the number of rows that an encoder's token table needs.
    pub fn tokens(self) -> usize {
        match self {
            Self::Clip(_) => 49_408,
            Self::T5 => 32_100,
            Self::Qwen(generation) => generation.tokens(),
        }
    }

    /// The files of a folder with this tokenizer: names and contents, for programs that need them.
    ///
    /// # Errors
    /// Errors of the `tokenizers` crate.
    pub fn files(self) -> Result<Vec<(&'static str, String)>> {
        Ok(match self {
            Self::Clip(padding) => kiln_clip::Tokenizer::clip_files(padding)?.into(),
            Self::T5 => kiln_t5::Tokenizer::built_in()?.files()?.into(),
            Self::Qwen(generation) => kiln_qwen::Tokenizer::built_in(generation)?.files()?.into(),
        })
    }

    /// Whether a tokenizer in the files `texts` at `origin` equals it.
    ///
    /// # Errors
    /// Errors of the tokenizer in the files.
    pub fn is_in(self, origin: &Path, texts: &BTreeMap<String, String>) -> Result<bool> {
        let files = TokenizerFiles::Kept { origin: origin.to_path_buf(), texts: texts.clone() };
        let own = TokenizerFiles::BuiltIn(self);
        Ok(match self {
            Self::Clip(_) => files.clip()?.is_same_as(&own.clip()?),
            Self::T5 => files.t5()?.is_same_as(&own.t5()?),
            Self::Qwen(_) => files.qwen()?.is_same_as(&own.qwen()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn built_in_tokenizers_have_the_stated_tokens_and_equal_their_files() {
        let qwen = [Generation::Qwen2, Generation::Qwen3].map(BuiltInTokenizer::Qwen);
        for own in [BuiltInTokenizer::Clip(ClipPadding::End), BuiltInTokenizer::T5].into_iter().chain(qwen) {
            let files = TokenizerFiles::BuiltIn(own);
            let tokens = match own {
                BuiltInTokenizer::Clip(_) => files.clip().unwrap().vocab_size(),
                BuiltInTokenizer::T5 => files.t5().unwrap().vocab_size(),
                BuiltInTokenizer::Qwen(_) => files.qwen().unwrap().vocab_size(),
            };
            assert_eq!(tokens, own.tokens(), "{own:?}");
            let texts = own.files().unwrap().into_iter().map(|(name, text)| (name.to_string(), text)).collect();
            assert!(own.is_in("test".as_ref(), &texts).unwrap(), "{own:?}");
        }
        let message = TokenizerFiles::BuiltIn(BuiltInTokenizer::T5).qwen().err().unwrap().to_string();
        assert_eq!(message, "the program has a tokenizer of T5 for this text encoder, expected one of Qwen");
    }
}
