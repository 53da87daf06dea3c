//! The errors of a U-Net.

/// The reason why a U-Net cannot be built or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration is not JSON of the expected form.
    #[error("the U-Net's configuration cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// A value of the configuration is impossible.
    #[error("the U-Net's configuration: `{key}` is {found}, expected {expected}")]
    Config {
        /// The key in `config.json`.
        key: &'static str,
        /// Its value.
        found: String,
        /// The possible values.
        expected: String,
    },
    /// The configuration needs a feature that Kiln does not support.
    #[error("the U-Net's configuration: `{key}` is {found}, which is not supported (only {supported})")]
    Unsupported {
        /// The key in `config.json`.
        key: &'static str,
        /// Its value.
        found: String,
        /// The supported values.
        supported: &'static str,
    },
    /// An input does not fit the network.
    #[error("the U-Net's input `{input}` has shape {found:?}, expected {expected}")]
    Input {
        /// The input.
        input: &'static str,
        /// The expected shape.
        expected: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// An IP-Adapter is impossible, or does not fit the U-Net.
    #[error("{0}")]
    ImagePrompt(String),
    /// A part of the network failed; the message has its path.
    #[error("U-Net: {0}")]
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

impl kiln_network::Failure for Error {
    fn is_out_of_memory(&self) -> bool {
        Self::is_out_of_memory(self)
    }

    fn is_stopped(&self) -> bool {
        Self::is_stopped(self)
    }
}

impl From<Error> for kiln_network::Error {
    fn from(error: Error) -> Self {
        Self::Failed(Box::new(error))
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
