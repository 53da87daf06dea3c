//! The errors of this crate.

use std::path::{Path, PathBuf};

use kiln_weights::read_small_text;

/// The reasons why a text could not be encoded. They concern the tokenizer's files, the encoder's configuration, or the
/// arguments.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A folder contains no tokenizer.
    #[error("{}: no tokenizer found, looked for tokenizer.json, or vocab.json with merges.txt", folder.display())]
    NoTokenizer {
        /// The folder.
        folder: PathBuf,
    },
    /// A file has invalid contents.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem, and the remedy.
        problem: String,
    },
    /// The configuration of a text encoder is invalid.
    #[error("text encoder configuration: {0}")]
    Config(String),
    /// The tokenizer failed on a text.
    #[error("the text cannot be tokenized: {0}")]
    Tokenize(String),
    /// The requested layer does not exist in the encoder.
    #[error("layer {from_end} from the end was requested, expected 1 to {layers}: the text encoder's layers")]
    Layer {
        /// The layer, counted from the last one, which is 1.
        from_end: usize,
        /// The number of layers of the encoder.
        layers: usize,
    },
    /// There is nothing to encode.
    #[error("no chunk of tokens was given, expected at least one: an empty prompt is a chunk too")]
    NoChunks,
    /// A chunk does not have the length of the first chunk, or of the encoder.
    #[error("chunk {chunk} has {found} tokens, expected {expected}; tokenizer and text encoder must be of one model")]
    ChunkLength {
        /// The chunk, counted from 0.
        chunk: usize,
        /// The number of its tokens.
        found: usize,
        /// The allowed number of tokens.
        expected: String,
    },
    /// The configuration of an image encoder is invalid.
    #[error("image encoder configuration: {0}")]
    VisionConfig(String),
    /// A token id is outside the encoder's vocabulary.
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
    /// The vectors of an embedding have the wrong width for this encoder.
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
    /// The pixels of an image do not fit the image encoder.
    #[error("the pixels for the image encoder have shape {found:?}, expected {expected}")]
    Pixels {
        /// Their shape.
        found: Vec<usize>,
        /// The expected shape.
        expected: String,
    },
    /// A layer failed; the message begins with the layer's name.
    #[error(transparent)]
    Nn(#[from] kiln_nn::Error),
}

impl Error {
    /// Whether the caller's `StopSign` was set (`kiln_ops`).
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Nn(error) if error.is_stopped())
    }

    /// Whether memory ran out. A smaller workload may then succeed.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Nn(error) => error.is_out_of_memory(),
            _ => false,
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The text of a file of at most `most` bytes.
pub(crate) fn read_text(path: &Path, most: u64) -> Result<String> {
    read_small_text(path, most).map_err(|source| Error::Io { path: path.to_path_buf(), source })
}

/// An error for a file with invalid contents.
pub(crate) fn format_error(path: &Path, problem: impl Into<String>) -> Error {
    Error::Format { path: path.to_path_buf(), problem: problem.into() }
}
