//! The errors of Qwen's text encoders and of their tokenizers.

use std::path::{Path, PathBuf};

/// The reason why a Qwen text encoder cannot be built or run, or why a text cannot be tokenized.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is not JSON of the expected form.
    #[error("the {network}'s configuration cannot be read: {error}")]
    Json {
        /// The name of the network in messages.
        network: &'static str,
        /// The error of the parser.
        error: serde_json::Error,
    },
    /// A value of the configuration is impossible or not supported.
    #[error("the {network}'s configuration: `{key}` is {found}, expected {expected}")]
    Config {
        /// The name of the network in messages.
        network: &'static str,
        /// The key in `config.json`.
        key: &'static str,
        /// Its value.
        found: String,
        /// The possible values.
        expected: String,
    },
    /// An input does not fit the network.
    #[error("the {network}'s input `{input}` has shape {found:?}, expected {expected}")]
    Input {
        /// The name of the network in messages.
        network: &'static str,
        /// The input.
        input: &'static str,
        /// The expected shape.
        expected: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// A token id is outside of the encoder's vocabulary.
    #[error(
        "token id {id} is outside of the {network}'s vocabulary of {vocab_size}; tokenizer and text encoder must be of one model"
    )]
    Token {
        /// The name of the network in messages.
        network: &'static str,
        /// The id.
        id: u32,
        /// The encoder's vocabulary.
        vocab_size: usize,
    },
    /// A file of a tokenizer could not be read.
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
    /// A file of a tokenizer has invalid contents.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem, and the remedy.
        problem: String,
    },
    /// The tokenizer failed on a text.
    #[error("the text cannot be tokenized: {0}")]
    Tokenize(String),
    /// An image could not be resized.
    #[error("an image for the Qwen2.5-VL vision tower: {0}")]
    Image(#[from] kiln_media::Error),
    /// A part of the network failed; the message has its path.
    #[error("Qwen: {0}")]
    Nn(#[from] kiln_nn::Error),
}

impl Error {
    /// Whether the caller's `StopSign` was set (`kiln_ops`).
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Nn(error) if error.is_stopped())
    }

    /// Whether memory ran out. A smaller workload may then succeed.
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Nn(error) if error.is_out_of_memory())
    }
}

impl From<Error> for kiln_network::text::Error {
    fn from(error: Error) -> Self {
        if error.is_stopped() {
            return Self::Stopped;
        }
        Self::Network { out_of_memory: error.is_out_of_memory(), error: Box::new(error) }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error for a file with invalid contents.
pub(crate) fn format_error(path: &Path, problem: impl Into<String>) -> Error {
    Error::Format { path: path.to_path_buf(), problem: problem.into() }
}
