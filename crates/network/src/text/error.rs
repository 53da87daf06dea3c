//! The errors of text stages.

/// The reason why a text could not be encoded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// [`super::Runs`] or the caller's `StopSign` (`kiln_ops`) stopped the stage. The caller has the reason.
    #[error("the text encoders were stopped")]
    Stopped,
    /// An option of the request is not possible with these texts.
    #[error("`{name}` is {found}, expected {expected}")]
    Option {
        /// The option.
        name: &'static str,
        /// Its value.
        found: String,
        /// A possible value.
        expected: String,
    },
    /// A tokenizer or a text encoder failed.
    #[error("{error}")]
    Network {
        /// The error of its crate.
        error: Box<dyn std::error::Error + Send + Sync>,
        /// Whether memory ran out.
        out_of_memory: bool,
    },
    /// The vectors of a word could not be read.
    #[error(transparent)]
    Weights(#[from] kiln_weights::Error),
    /// A tensor's operation failed.
    #[error(transparent)]
    Nn(#[from] kiln_nn::Error),
}

impl Error {
    /// Whether the stage was stopped: by [`super::Runs`], or by the caller's `StopSign` (`kiln_ops`).
    pub fn is_stopped(&self) -> bool {
        match self {
            Self::Stopped => true,
            Self::Weights(error) => error.is_stopped(),
            Self::Nn(error) => error.is_stopped(),
            Self::Network { .. } | Self::Option { .. } => false,
        }
    }

    /// Whether memory ran out. A smaller workload may then succeed.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Network { out_of_memory, .. } => *out_of_memory,
            Self::Weights(error) => error.is_out_of_memory(),
            Self::Nn(error) => error.is_out_of_memory(),
            Self::Stopped | Self::Option { .. } => false,
        }
    }
}

impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Nn(error.into())
    }
}

/// A result with this module's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
