//! What can be wrong with a denoiser.

/// Why a U-Net cannot be built or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is no JSON of the expected form.
    #[error("the U-Net's configuration cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A value of the configuration is impossible.
    #[error("the U-Net's configuration: `{key}` is {found}, expected {expected}")]
    Config {
        /// The key in `config.json`.
        key: &'static str,
        /// Its value.
        found: String,
        /// What is possible.
        expected: String,
    },
    /// The configuration asks for a part that Kiln does not have.
    #[error("the U-Net's configuration: `{key}` is {found}, which is not supported (only {supported})")]
    Unsupported {
        /// The key in `config.json`.
        key: &'static str,
        /// Its value.
        found: String,
        /// What is supported.
        supported: &'static str,
    },
    /// An input does not fit the network.
    #[error("the U-Net's input `{input}` has shape {found:?}, expected {expected}")]
    Input {
        /// The input.
        input: &'static str,
        /// What fits.
        expected: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// A part of the network failed; the message has its path.
    #[error("U-Net: {0}")]
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
