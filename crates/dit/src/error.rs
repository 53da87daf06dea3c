//! The errors of diffusion transformers.

/// The reason why a diffusion transformer cannot be built or run.
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
    /// A part of the network failed; the message has its path.
    #[error("transformer: {0}")]
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
