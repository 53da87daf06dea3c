//! Errors of requests.

use std::path::{Path, PathBuf};

use crate::options::{respell, shown};

/// Why a request cannot be taken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value of the request is impossible.
    #[error("{} is {found}, expected {expected}", shown(name))]
    Value {
        /// The option's name, or what else the value is in words.
        name: &'static str,
        /// Its value.
        found: String,
        /// The allowed values, with the nearest one if it exists.
        expected: String,
    },
    /// The schedule is invalid.
    #[error(transparent)]
    Scheduler(#[from] kiln_scheduler::Error),
    /// A file cannot be read.
    #[error(transparent)]
    Files(#[from] kiln_files::Error),
    /// A file of the model is invalid.
    #[error(transparent)]
    Models(#[from] kiln_models::Error),
    /// An input image cannot be read or changed.
    #[error(transparent)]
    Media(#[from] kiln_media::Error),
    /// A file is no upscaler.
    #[error(transparent)]
    Upscale(#[from] kiln_upscale::Error),
    /// The pixels of an input image could not be converted.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// The message of an error of a file with the names of options respelled, as [`Error::message`] does. Paths stay as they are.
pub fn message_of_file(error: &kiln_files::Error, spell: &dyn Fn(&str) -> Option<String>) -> String {
    match error {
        kiln_files::Error::NotFound { path, looked_for } => {
            format!("{}: not found; looked for {}", path.display(), respell(looked_for, spell))
        }
        kiln_files::Error::Read { .. } | kiln_files::Error::Write { .. } => error.to_string(),
        other => respell(&other.to_string(), spell),
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the request is at fault and not a file.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Value { .. } | Self::Scheduler(_) => true,
            Self::Files(error) => error.is_usage(),
            Self::Models(error) => error.is_usage(),
            _ => false,
        }
    }

    /// The message with each option's name between backticks replaced by what `spell` gives for it, as a front end calls
    /// it. A model folder's problem names fields of its file, which stay.
    pub fn message(&self, spell: &dyn Fn(&str) -> Option<String>) -> String {
        match self {
            Self::Models(kiln_models::Error::Model { .. }) => self.to_string(),
            Self::Value { name, found, expected } => {
                format!("{} is {found}, expected {}", respell(&shown(name), spell), respell(expected, spell))
            }
            Self::Files(error) => message_of_file(error, spell),
            other => respell(&other.to_string(), spell),
        }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let error = kiln_files::read_error(path);
        |source| error(source).into()
    }

    pub(crate) fn model(path: &Path, problem: impl ToString) -> Self {
        kiln_models::Error::Model { path: path.to_path_buf(), problem: problem.to_string() }.into()
    }

    pub(crate) fn not_found(path: impl Into<PathBuf>, looked_for: String) -> Self {
        kiln_files::Error::NotFound { path: path.into(), looked_for }.into()
    }

    pub(crate) fn out_of_range(name: &'static str, error: kiln_models::limits::OutOfRange) -> Self {
        Self::Value { name, found: error.found, expected: error.expected }
    }
}
