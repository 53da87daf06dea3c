//! Errors of image sets.

use std::path::{Path, PathBuf};

use kiln_engine::respell;

use crate::problems::Problems;
use kiln_request::JobField;

/// Why a set cannot be planned or made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the engine: a value, a file, a model, a device.
    #[error(transparent)]
    Engine(#[from] kiln_engine::Error),
    /// A line of a job file or a journal is wrong.
    #[error("{file}:{line}: {problem}")]
    Job {
        /// The file.
        file: String,
        /// Its line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// Several lines of a job file are wrong.
    #[error("{0}")]
    Jobs(Problems),
    /// A check has found errors, and has reported them.
    #[error("{file} has {errors} error{}", if *errors == 1 { "" } else { "s" })]
    Refused {
        /// The job file.
        file: String,
        /// How many errors.
        errors: usize,
    },
    /// Some of a set's images could not be made.
    #[error(
        "{failed} of {all} images failed; {} has the reasons, and `retry` tries them again", journal.display()
    )]
    JobsFailed {
        /// How many failed.
        failed: usize,
        /// How many there are.
        all: usize,
        /// The journal.
        journal: PathBuf,
    },
    /// Another process makes the set.
    #[error("{}: another kiln batch is running there; wait for it, or choose another folder", .0.display())]
    Busy(PathBuf),
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the request itself is at fault (exit status 2), rather than a file, a device or the run.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Engine(error) => error.is_usage(),
            Self::Job { .. } | Self::Jobs(_) | Self::Refused { .. } => true,
            Self::JobsFailed { .. } | Self::Busy(_) => false,
        }
    }

    /// The message with each option's name between backticks replaced by what `spell` gives for it, as a front end calls
    /// it. Options in a problem of a job stay: they are fields of its file.
    pub fn message(&self, spell: &dyn Fn(&str) -> Option<String>) -> String {
        match self {
            Self::Engine(error) => error.message(spell),
            Self::Job { file, line, problem } => format!("{file}:{line}: {}", in_job(problem, spell)),
            Self::Jobs(problems) => problems.message(&|text| in_job(text, spell)),
            other => respell(&other.to_string(), spell),
        }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let error = kiln_files::read_error(path);
        |source| error(source).into()
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let error = kiln_files::write_error(path);
        |source| error(source).into()
    }

    pub(crate) fn value(name: &'static str, found: String, expected: String) -> Self {
        kiln_request::Error::Value { name, found, expected }.into()
    }
}

/// A problem of a job with the names that `spell` gives for options of the run. The fields of a job keep their names.
pub fn in_job(problem: &str, spell: &dyn Fn(&str) -> Option<String>) -> String {
    respell(problem, &|name| if JobField::find(name).is_some() { None } else { spell(name) })
}

macro_rules! from_engine {
    ($($error:ty),+ $(,)?) => {$(
        impl From<$error> for Error {
            fn from(error: $error) -> Self {
                Self::Engine(error.into())
            }
        }
    )+};
}

from_engine!(kiln_files::Error, kiln_models::Error, kiln_request::Error);
