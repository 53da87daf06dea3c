//! Errors between a request and an image.

use std::path::{Path, PathBuf};

use kiln_files::ByteSize;

use crate::room::Room;

/// Why an image was not generated. [`Error::is_usage`] distinguishes invalid requests from failed runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value of the request is invalid.
    #[error("{name} is {found}, expected {expected}")]
    Value {
        /// The field.
        name: &'static str,
        /// Its value.
        found: String,
        /// The allowed values, with the nearest one if it exists.
        expected: String,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    Files(#[from] kiln_files::Error),
    /// A model, or a file of a model, is invalid.
    #[error(transparent)]
    Models(kiln_models::Error),
    /// A line of a job file is invalid.
    #[error("{file}:{line}: {problem}")]
    Job {
        /// The file.
        file: String,
        /// Its line, from 1.
        line: usize,
        /// The problem.
        problem: String,
    },
    /// Some images of a set failed.
    #[error(
        "{failed} of {all} images failed; {} has the reasons, and --retry tries them again", journal.display()
    )]
    JobsFailed {
        /// The number of failed images.
        failed: usize,
        /// The total number.
        all: usize,
        /// The journal.
        journal: PathBuf,
    },
    /// Another process is generating the set.
    #[error("{}: another kiln batch is running there; wait for it, or choose another folder", .0.display())]
    Busy(PathBuf),
    /// An image has no usable settings.
    #[error("{}: no settings to generate the image again: {found}", path.display())]
    NoSettings {
        /// The image.
        path: PathBuf,
        /// The settings that were found.
        found: String,
    },
    /// The requested device does not exist.
    #[error("{0}")]
    Device(String),
    /// A measurement does not fit into memory.
    #[error(
        "{what} needs {} of memory, {} are available; try a smaller size, --dtype bf16, or end other programs",
        gib(*needed), gib(*available)
    )]
    Memory {
        /// The measured stage.
        what: String,
        /// The required bytes.
        needed: u64,
        /// The available bytes.
        available: u64,
    },
    /// No plan fits into the available memory.
    #[error(
        "{what} needs {needed} in {mode}, in the stage {stage} ({parts}), and {room}; try a smaller size, fewer images \
         at once, a 16-bit --dtype or --taesd"
    )]
    Budget {
        /// The number of images and their size.
        what: String,
        /// The mode.
        mode: String,
        /// The stage with the highest memory.
        stage: String,
        /// Its bytes.
        needed: ByteSize,
        /// The components of these bytes.
        parts: String,
        /// The available memory.
        room: Room,
    },
    /// Values are not finite.
    #[error("{stage} produced {count} NaN or infinite values; {remedy}")]
    NotANumber {
        /// The stage.
        stage: &'static str,
        /// The number of values.
        count: usize,
        /// The necessary action.
        remedy: &'static str,
    },
    /// The user interrupted the run.
    #[error("interrupted")]
    Interrupted,
    /// Text could not be encoded.
    #[error(transparent)]
    Clip(#[from] kiln_clip::Error),
    /// The denoiser failed.
    #[error(transparent)]
    Unet(#[from] kiln_unet::Error),
    /// The autoencoder failed.
    #[error(transparent)]
    Vae(#[from] kiln_vae::Error),
    /// A layer or an operator failed.
    #[error(transparent)]
    Nn(#[from] kiln_nn::Error),
    /// An operator or a captured graph failed.
    #[error(transparent)]
    Ops(#[from] kiln_ops::Error),
    /// A memory pool failed.
    #[error(transparent)]
    Pool(#[from] kiln_mempool::Error),
    /// The schedule is invalid.
    #[error(transparent)]
    Scheduler(kiln_scheduler::Error),
    /// Weights could not be loaded.
    #[error(transparent)]
    Weights(#[from] kiln_weights::Error),
    /// candle reported an error.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

fn gib(bytes: u64) -> String {
    format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30))
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the request is at fault (exit status 2) and not a file, a device or the run.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Value { .. } | Self::Budget { .. } | Self::Scheduler(_) | Self::Job { .. } => true,
            Self::Files(error) => error.is_usage(),
            Self::Models(error) => error.is_usage(),
            _ => false,
        }
    }

    /// An error of writing to the standard output.
    pub fn output(source: std::io::Error) -> Self {
        kiln_files::Error::Write { path: "the standard output".into(), source }.into()
    }

    /// Whether memory was exhausted: a smaller workload may fit.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Clip(error) => error.is_out_of_memory(),
            Self::Unet(error) => error.is_out_of_memory(),
            Self::Vae(error) => error.is_out_of_memory(),
            Self::Nn(error) => error.is_out_of_memory(),
            Self::Ops(error) => error.is_out_of_memory(),
            Self::Pool(error) => error.is_out_of_memory(),
            Self::Models(error) => error.is_out_of_memory(),
            Self::Weights(error) => error.is_out_of_memory(),
            Self::Candle(error) => kiln_ops::is_out_of_memory(error),
            _ => false,
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

    pub(crate) fn not_found(path: impl Into<PathBuf>, looked_for: String) -> Self {
        kiln_files::Error::NotFound { path: path.into(), looked_for }.into()
    }

    pub(crate) fn out_of_range(name: &'static str, error: kiln_models::limits::OutOfRange) -> Self {
        Self::Value { name, found: error.found, expected: error.expected }
    }

    pub(crate) fn model(path: &Path, problem: impl ToString) -> Self {
        Self::Models(kiln_models::Error::model(path, problem))
    }
}

impl From<kiln_scheduler::Error> for Error {
    fn from(error: kiln_scheduler::Error) -> Self {
        match error {
            kiln_scheduler::Error::Interrupted => Self::Interrupted,
            // A sampler's arithmetic may run out of GPU memory, which is not an error of the request.
            kiln_scheduler::Error::Tensor(error) => Self::Candle(error),
            other => Self::Scheduler(other),
        }
    }
}

impl From<kiln_models::Error> for Error {
    fn from(error: kiln_models::Error) -> Self {
        match error {
            kiln_models::Error::Interrupted => Self::Interrupted,
            kiln_models::Error::Files(error) => Self::Files(error),
            kiln_models::Error::Clip(error) => Self::Clip(error),
            kiln_models::Error::Unet(error) => Self::Unet(error),
            kiln_models::Error::Vae(error) => Self::Vae(error),
            kiln_models::Error::Weights(error) => Self::Weights(error),
            kiln_models::Error::Scheduler(error) => error.into(),
            other => Self::Models(other),
        }
    }
}
