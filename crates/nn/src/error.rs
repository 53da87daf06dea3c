//! What can go wrong in a layer.

/// Why a layer could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The error of a part, with the part's name in the checkpoint's terms.
    #[error("{module}: {source}")]
    At {
        /// The part.
        module: String,
        /// Its error.
        source: Box<Error>,
    },
    /// An index is outside of a table.
    #[error("index {index} is outside of a table of {rows} rows")]
    Index {
        /// The index.
        index: usize,
        /// How many rows the table has.
        rows: usize,
    },
    /// An operator refused its operands.
    #[error(transparent)]
    Ops(#[from] kiln_ops::Error),
    /// Weights are missing.
    #[error(transparent)]
    Weights(#[from] kiln_weights::Error),
    /// candle reported an error.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Whether there was no memory: less work at a time may help.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::At { source, .. } => source.is_out_of_memory(),
            Self::Ops(error) => error.is_out_of_memory(),
            Self::Weights(error) => error.is_out_of_memory(),
            Self::Candle(error) => kiln_ops::is_out_of_memory(error),
            _ => false,
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Names the part of a network in which an error arose.
pub trait At<T> {
    /// Adds the part's name to an error.
    fn at(self, module: &str) -> Result<T>;
}

impl<T, E: Into<Error>> At<T> for std::result::Result<T, E> {
    fn at(self, module: &str) -> Result<T> {
        self.map_err(|error| Error::At { module: module.to_string(), source: Box::new(error.into()) })
    }
}
