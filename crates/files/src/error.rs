//! Errors of file access.

use std::path::{Path, PathBuf};

/// Why a file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path cannot be used for this output.
    #[error("`{field}` is {found}, expected {expected}")]
    Value {
        /// The field that contains the path, as in [`FileRules`](crate::FileRules).
        field: &'static str,
        /// The path.
        found: String,
        /// The expected value.
        expected: String,
    },
    /// A required file or folder does not exist.
    #[error("{}: not found; looked for {looked_for}", path.display())]
    NotFound {
        /// The expected location.
        path: PathBuf,
        /// The file that was searched for.
        looked_for: String,
    },
    /// A file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file exists already and must not be replaced.
    #[error("{} exists already; choose another name, or allow `overwrite`", .0.display())]
    Exists(PathBuf),
}

impl Error {
    /// Whether the error is in a path that the user chose, and not in the file system.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Value { .. } | Self::Exists(_))
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Makes an error from the system's error on reading `path`, for `map_err`.
pub fn read_error(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_path_buf();
    |source| Error::Read { path, source }
}

/// Makes an error from the system's error on writing `path`, for `map_err`.
pub fn write_error(path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_path_buf();
    |source| Error::Write { path, source }
}
