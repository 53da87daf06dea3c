//! Errors of updates.

use std::path::PathBuf;

/// Why the program was not updated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No receipt names this program.
    #[error("{}: no install script put this program here, so it does not update itself; {advice}", program.display())]
    NotInstalled {
        /// This program.
        program: PathBuf,
        /// The command that updates it.
        advice: String,
    },
    /// The receipt is damaged, or names no place for releases.
    #[error("{}: {problem}; run the install script again", path.display())]
    Receipt {
        /// The receipt.
        path: PathBuf,
        /// The problem.
        problem: String,
    },
    /// A request failed.
    #[error("{address}: {problem}")]
    Request {
        /// The address.
        address: String,
        /// The problem.
        problem: String,
    },
    /// The release is not what its sums say, or not complete.
    #[error("{address}: {problem}; the program was not changed")]
    Release {
        /// The file of the release.
        address: String,
        /// The problem.
        problem: String,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    Files(#[from] kiln_files::Error),
}

impl Error {
    /// Whether the command makes no sense for this program, whatever the network does.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::NotInstalled { .. })
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
