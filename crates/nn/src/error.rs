//! The errors of layers.

/// The reason why a layer could not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error inside a module, with the module's name in the checkpoint.
    #[error("{module}: {source}")]
    At {
        /// The module.
        module: String,
        /// Its error.
        source: Box<Error>,
    },
    /// An index is outside a table.
    #[error("index {index} is outside a table of {rows} rows")]
    Index {
        /// The index.
        index: usize,
        /// The number of rows of the table.
        rows: usize,
    },
    /// An operator rejected its operands.
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
    /// Whether the caller's [`kiln_ops::StopSign`] was set.
    pub fn is_stopped(&self) -> bool {
        match self {
            Self::At { source, .. } => source.is_stopped(),
            Self::Ops(kiln_ops::Error::Stopped) => true,
            Self::Weights(error) => error.is_stopped(),
            _ => false,
        }
    }

    /// Whether memory ran out. A smaller workload may then succeed.
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

/// Names the module of a network in which an error occurred.
pub trait At<T> {
    /// Adds the module's name to an error.
    fn at(self, module: &str) -> Result<T>;
}

impl<T, E: Into<Error>> At<T> for std::result::Result<T, E> {
    fn at(self, module: &str) -> Result<T> {
        self.map_err(|error| Error::At { module: module.to_string(), source: Box::new(error.into()) })
    }
}
