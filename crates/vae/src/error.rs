//! The errors of an autoencoder.

/// The reason why an autoencoder cannot be built or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is not JSON of the expected form.
    #[error("the VAE's configuration cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A value of the configuration is impossible or not supported.
    #[error("the VAE's configuration: `{key}` is {found}, expected {expected}")]
    Config {
        /// The key in `config.json`.
        key: &'static str,
        /// Its value.
        found: String,
        /// The possible values.
        expected: String,
    },
    /// An input does not fit the network.
    #[error("the VAE's input has shape {found:?}, expected {expected}")]
    Input {
        /// The expected shape.
        expected: String,
        /// The input's shape.
        found: Vec<usize>,
    },
    /// A part of the network failed; the message has its path.
    #[error("VAE: {0}")]
    Nn(#[from] kiln_nn::Error),
    /// candle reported an error.
    #[error("VAE: {0}")]
    Candle(#[from] candle_core::Error),
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
            Self::Candle(error) => kiln_nn::ops::is_out_of_memory(error),
            _ => false,
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
