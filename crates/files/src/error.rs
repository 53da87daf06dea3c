//! What can go wrong with a file.

use std::path::{Path, PathBuf};

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A path is not possible for what would be written there.
    #[error("`{field}` is {found}, expected {expected}")]
    Value {
        /// The field that has the path, as in [`FileRules`](crate::FileRules).
        field: &'static str,
        /// The path.
        found: String,
        /// What is possible.
        expected: String,
    },
    /// A file or folder that is needed does not exist.
    #[error("{}: not found; looked for {looked_for}", path.display())]
    NotFound {
        /// Where it should be.
        path: PathBuf,
        /// What was looked for.
        looked_for: String,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system reported.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system reported.
        source: std::io::Error,
    },
    /// A file exists already and must not be replaced.
    #[error("{} exists already; choose another name, or allow `overwrite`", .0.display())]
    Exists(PathBuf),
}

impl Error {
    /// Whether a path is at fault that the user chose, rather than the file system.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Value { .. } | Self::Exists(_))
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Makes an error of what the system reported when `path` was read, for `map_err`.
pub fn read_error(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_path_buf();
    |source| Error::Read { path, source }
}

/// Makes an error of what the system reported when `path` was written, for `map_err`.
pub fn write_error(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_path_buf();
    |source| Error::Write { path, source }
}
