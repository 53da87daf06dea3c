//! What can be wrong with a tokenizer's files, an encoder's configuration, or what they are given.

use std::path::{Path, PathBuf};

use kiln_weights::read_small_text;

/// Why a text could not be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No tokenizer is in a folder.
    #[error("{}: no tokenizer found, looked for tokenizer.json, or vocab.json with merges.txt", folder.display())]
    NoTokenizer {
        /// The folder.
        folder: PathBuf,
    },
    /// A file is not what it should be.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A text encoder's configuration cannot be built.
    #[error("text encoder configuration: {0}")]
    Config(String),
    /// The tokenizer failed on a text.
    #[error("the text cannot be tokenized: {0}")]
    Tokenize(String),
    /// A layer was asked for that the encoder does not have.
    #[error("layer {from_end} from the end was asked for, expected 1 to {layers}: the text encoder's layers")]
    Layer {
        /// The layer, counted from the last one, which is 1.
        from_end: usize,
        /// How many layers the encoder has.
        layers: usize,
    },
    /// There is nothing to encode.
    #[error("no chunk of tokens was given, expected at least one: an empty prompt is a chunk too")]
    NoChunks,
    /// A chunk has another length than the encoder or the first chunk wants.
    #[error("chunk {chunk} has {found} tokens, expected {expected}; tokenizer and text encoder must be of one model")]
    ChunkLength {
        /// The chunk, counted from 0.
        chunk: usize,
        /// How many tokens it has.
        found: usize,
        /// How many it may have.
        expected: String,
    },
    /// An id is outside of the encoder's vocabulary.
    #[error(
        "chunk {chunk}: token id {id} is outside of the text encoder's vocabulary of {vocab_size}; tokenizer and text \
         encoder must be of one model"
    )]
    Token {
        /// The chunk, counted from 0.
        chunk: usize,
        /// The id.
        id: u32,
        /// The encoder's vocabulary.
        vocab_size: usize,
    },
    /// The vectors of a word are not for this encoder.
    #[error(
        "the vectors of `{word}` have shape {found:?}, expected (n, {channels}); are they for another text encoder?"
    )]
    Vectors {
        /// The word.
        word: String,
        /// Their shape.
        found: Vec<usize>,
        /// The channels of the encoder's tokens.
        channels: usize,
    },
    /// A layer failed; the message begins with the layer's name.
    #[error(transparent)]
    Nn(#[from] kiln_nn::Error),
}

impl Error {
    /// Whether there was no memory: less work at a time may help.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Nn(error) => error.is_out_of_memory(),
            _ => false,
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// The text of a file of at most `most` bytes.
pub(crate) fn read_text(path: &Path, most: u64) -> Result<String> {
    read_small_text(path, most).map_err(|source| Error::Io { path: path.to_path_buf(), source })
}

/// A file that is not what it should be.
pub(crate) fn format_error(path: &Path, problem: impl Into<String>) -> Error {
    Error::Format { path: path.to_path_buf(), problem: problem.into() }
}
