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
    /// A tensor's operation failed.
    #[error(transparent)]
    Nn(#[from] kiln_nn::Error),
}

impl Error {
    /// Whether memory ran out. A smaller workload may then succeed.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Nn(error) => error.is_out_of_memory(),
            Self::Input { .. } => false,
        }
    }
}

/// A result, with this crate's [`Error`] by default.
pub type Result<T, E = Error> = std::result::Result<T, E>;
