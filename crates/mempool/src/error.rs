//! What can go wrong with a pool.

/// Why a pool cannot do what it is asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This build cannot use cards.
    #[error("this build of Kiln has no CUDA; use kiln-cuda")]
    NoCuda,
    /// CUDA's driver refused a call.
    #[error("the memory pool of card {ordinal}: {call}: {problem}")]
    Driver {
        /// The card's number.
        ordinal: usize,
        /// What was asked of the driver.
        call: &'static str,
        /// What it said.
        problem: String,
    },
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
