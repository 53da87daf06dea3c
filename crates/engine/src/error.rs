//! What can go wrong on the way from a request to a picture.

use std::path::{Path, PathBuf};

use kiln_files::ByteSize;

use crate::options::{find_option, respell, shown};
use crate::room::Room;

/// Why there is no picture. [`Error::is_usage`] tells a request that cannot be met from a run that failed.
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
        /// What is possible, with the nearest possible value where there is one.
        expected: String,
    },
    /// A file cannot be read or written.
    #[error(transparent)]
    Files(#[from] kiln_files::Error),
    /// An input image cannot be read.
    #[error(transparent)]
    Image(#[from] kiln_media::Error),
    /// A model, or a file of one, is not what it should be.
    #[error(transparent)]
    Models(kiln_models::Error),
    /// A line of a file of jobs cannot be what it is.
    #[error("{file}:{line}: {problem}")]
    Job {
        /// The file.
        file: String,
        /// Its line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// Some of a set's pictures could not be made.
    #[error(
        "{failed} of {all} pictures failed; {} tells why, and `retry` tries them again", journal.display()
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
    #[error("{}: another kiln batch is at work there; wait for it, or choose another folder", .0.display())]
    Busy(PathBuf),
    /// A picture has no settings that can be taken.
    #[error("{}: no settings to make the picture again: {found}", path.display())]
    NoSettings {
        /// The picture.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// The device that was asked for is not there.
    #[error("{0}")]
    Device(String),
    /// A measurement does not fit into memory.
    #[error(
        "{what} needs {} of memory, {} are available; try a smaller size, `dtype` bf16, or end other programs",
        gib(*needed), gib(*available)
    )]
    Memory {
        /// What is measured.
        what: String,
        /// What it takes, in bytes.
        needed: u64,
        /// What could be had, in bytes.
        available: u64,
    },
    /// Nothing fits into the memory that there is.
    #[error(
        "{what} needs {needed} in {mode}, in the stage {stage} ({parts}), and {room}; try a smaller size, fewer pictures \
         at once, a 16-bit `dtype` or `taesd`"
    )]
    Budget {
        /// Pictures and their size.
        what: String,
        /// The mode.
        mode: String,
        /// The stage that takes the most.
        stage: String,
        /// Its bytes.
        needed: ByteSize,
        /// What they are.
        parts: String,
        /// What there is.
        room: Room,
    },
    /// The numbers went wrong.
    #[error("{stage} gave {count} values that are not numbers; {remedy}")]
    NotANumber {
        /// Where.
        stage: &'static str,
        /// How many values.
        count: usize,
        /// What to do.
        remedy: &'static str,
    },
    /// The user stopped the run.
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
    /// A layer, or an operator of a run, failed.
    #[error(transparent)]
    Nn(#[from] kiln_nn::Error),
    /// An operator, or a recorded run, failed.
    #[error(transparent)]
    Ops(#[from] kiln_ops::Error),
    /// A memory pool failed.
    #[error(transparent)]
    Pool(#[from] kiln_mempool::Error),
    /// The schedule is impossible.
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
    /// Whether the request itself is at fault (exit status 2), rather than a file, a device or the run.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Value { .. } | Self::Budget { .. } | Self::Scheduler(_) | Self::Job { .. } => true,
            Self::Files(error) => error.is_usage(),
            Self::Models(error) => error.is_usage(),
            _ => false,
        }
    }

    /// The message with each option's name between backticks replaced by what `spell` gives for it, as a front end calls
    /// it. A model folder's problem names fields of its file, which stay, as do a job's options in the problem of a batch
    /// file.
    pub fn message(&self, spell: &dyn Fn(&str) -> Option<String>) -> String {
        match self {
            Self::Models(kiln_models::Error::Model { .. }) => self.to_string(),
            Self::Job { file, line, problem } => {
                let of_run = |name: &str| if find_option(name).is_some() { None } else { spell(name) };
                format!("{file}:{line}: {}", respell(problem, &of_run))
            }
            Self::Value { name, found, expected } => {
                format!("{} is {found}, expected {}", respell(&shown(name), spell), respell(expected, spell))
            }
            Self::Files(kiln_files::Error::NotFound { path, looked_for }) => {
                format!("{}: not found; looked for {}", path.display(), respell(looked_for, spell))
            }
            Self::Files(kiln_files::Error::Read { .. } | kiln_files::Error::Write { .. }) => self.to_string(),
            other => respell(&other.to_string(), spell),
        }
    }

    /// The standard output could not be written to.
    pub fn output(source: std::io::Error) -> Self {
        kiln_files::Error::Write { path: "the standard output".into(), source }.into()
    }

    /// Whether there was no memory: less work at a time may help.
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
            // A sampler's arithmetic, which may have no memory on a card: nothing that a user asked for is wrong.
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
