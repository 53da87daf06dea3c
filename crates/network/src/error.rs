//! The errors of networks behind their common interface.

/// The reason why inputs do not fit, or why a network failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Inputs do not fit each other.
    #[error("the network's input `{input}` has shape {found:?}, expected {expected}")]
    Input {
        /// The input.
        input: &'static str,
        /// The expected shape.
        expected: String,
        /// Its shape.
        found: Vec<usize>,
    },
    /// A network failed; the message has the path of the part.
    #[error("{0}")]
    Failed(Box<dyn Failure>),
    /// A tensor's operation failed.
    #[error(transparent)]
    Nn(#[from] kiln_nn::Error),
}

/// The error of a network of any family.
pub trait Failure: std::error::Error + Send + Sync + 'static {
    /// Whether memory ran out.
    fn is_out_of_memory(&self) -> bool;

    /// Whether the caller's `StopSign` was set (`kiln_ops`).
    fn is_stopped(&self) -> bool;
}

impl Error {
    /// Whether the caller's `StopSign` was set (`kiln_ops`).
    pub fn is_stopped(&self) -> bool {
        match self {
            Self::Nn(error) => error.is_stopped(),
            Self::Failed(error) => error.is_stopped(),
            Self::Input { .. } => false,
        }
    }

    /// Whether memory ran out. A smaller workload may then succeed.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Nn(error) => error.is_out_of_memory(),
            Self::Failed(error) => error.is_out_of_memory(),
            Self::Input { .. } => false,
        }
    }
}

/// A result, with this crate's [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;
