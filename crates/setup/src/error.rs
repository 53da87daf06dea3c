//! Errors between a request and an image.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use kiln_files::ByteSize;
use kiln_request::{message_of_file, respell};

use crate::room::Room;

/// Why an image was not generated. [`Error::is_usage`] distinguishes invalid requests from failed runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request is invalid.
    #[error(transparent)]
    Request(kiln_request::Error),
    /// A file cannot be read or written.
    #[error(transparent)]
    Files(#[from] kiln_files::Error),
    /// A model, or a file of a model, is invalid.
    #[error(transparent)]
    Models(kiln_models::Error),
    /// An image does not fit into the memory that is available.
    #[error(
        "{what} needs {needed} of memory, {available} are available; try a smaller image, `dtype` bf16, or end other programs"
    )]
    Memory {
        /// The image and how it would be computed.
        what: String,
        /// Its memory.
        needed: ByteSize,
        /// The memory that is available.
        available: ByteSize,
    },
    /// Some of the images could not be upscaled; the events of the run have the reasons.
    #[error("{failed} of {all} images failed")]
    ImagesFailed {
        /// How many failed.
        failed: usize,
        /// The total number.
        all: usize,
    },
    /// An image has no settings that can be taken.
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
    /// Nothing fits into the memory that there is.
    #[error(
        "{what} needs {needed} in {mode}, in the stage {stage} ({parts}), and {room}; try a smaller size, fewer images \
         at once, a 16-bit `dtype` or `taesd`"
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
    #[error("{stage} gave {count} values that are not numbers; {remedy}")]
    NotANumber {
        /// The stage.
        stage: &'static str,
        /// The number of values.
        count: usize,
        /// The cause and the necessary action.
        remedy: String,
    },
    /// The user interrupted the run: a callback did, or the [`StopSign`](kiln_ops::StopSign) of the caller's thread.
    #[error("interrupted")]
    Interrupted,
    /// Text could not be encoded.
    #[error(transparent)]
    Clip(kiln_clip::Error),
    /// The text encoders of a model failed.
    #[error(transparent)]
    Text(kiln_network::text::Error),
    /// The denoiser failed.
    #[error(transparent)]
    Unet(kiln_unet::Error),
    /// The inputs of a network do not fit each other.
    #[error(transparent)]
    Network(kiln_network::Error),
    /// The autoencoder failed.
    #[error(transparent)]
    Vae(kiln_vae::Error),
    /// An image cannot be read, changed or written.
    #[error(transparent)]
    Media(#[from] kiln_media::Error),
    /// A file is no upscaler, or the upscaler failed.
    #[error(transparent)]
    Upscale(kiln_upscale::Error),
    /// A layer, or an operator of a run, failed.
    #[error(transparent)]
    Nn(kiln_nn::Error),
    /// An operator or a captured graph failed.
    #[error(transparent)]
    Ops(kiln_ops::Error),
    /// A memory pool failed.
    #[error(transparent)]
    Pool(#[from] kiln_mempool::Error),
    /// The schedule is invalid.
    #[error(transparent)]
    Scheduler(kiln_scheduler::Error),
    /// Weights could not be loaded.
    #[error(transparent)]
    Weights(kiln_weights::Error),
    /// candle reported an error.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// Whether the request is at fault (exit status 2) and not a file, a device or the run.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Budget { .. } | Self::Scheduler(_) => true,
            Self::Request(error) => error.is_usage(),
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
            Self::Request(error) => error.message(spell),
            Self::Files(error) => message_of_file(error, spell),
            other => respell(&other.to_string(), spell),
        }
    }

    /// The standard output could not be written to.
    pub fn output(source: std::io::Error) -> Self {
        kiln_files::Error::Write { path: "the standard output".into(), source }.into()
    }

    /// Whether memory was exhausted: a smaller workload may fit.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Clip(error) => error.is_out_of_memory(),
            Self::Text(error) => error.is_out_of_memory(),
            Self::Unet(error) => error.is_out_of_memory(),
            Self::Network(error) => error.is_out_of_memory(),
            Self::Vae(error) => error.is_out_of_memory(),
            Self::Upscale(error) => error.is_out_of_memory(),
            Self::Nn(error) => error.is_out_of_memory(),
            Self::Ops(error) => error.is_out_of_memory(),
            Self::Pool(error) => error.is_out_of_memory(),
            Self::Weights(error) => error.is_out_of_memory(),
            Self::Candle(error) => kiln_ops::is_out_of_memory(error),
            _ => false,
        }
    }

    /// Whether another device may make what failed: memory that is out, and errors of a device rather than of a job.
    pub fn is_of_device(&self) -> bool {
        let is_of_run = !self.is_usage() && !matches!(self, Self::Interrupted | Self::NotANumber { .. });
        let is_of_files = matches!(self, Self::Files(_) | Self::Models(_) | Self::Media(_) | Self::NoSettings { .. });
        matches!(self, Self::Budget { .. }) || (is_of_run && !is_of_files)
    }

    /// A file that cannot be read.
    pub fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let error = kiln_files::read_error(path);
        |source| error(source).into()
    }

    /// A file that cannot be written.
    pub fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let error = kiln_files::write_error(path);
        |source| error(source).into()
    }

    /// A file that does not exist, with what was searched.
    pub fn not_found(path: impl Into<PathBuf>, looked_for: String) -> Self {
        kiln_files::Error::NotFound { path: path.into(), looked_for }.into()
    }

    /// The value `name` is not allowed.
    pub fn value(name: &'static str, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Request(kiln_request::Error::Value { name, found: found.to_string(), expected: expected.into() })
    }

    /// A model with a problem.
    pub fn model(path: &Path, problem: impl ToString) -> Self {
        Self::Models(kiln_models::Error::model(path, problem))
    }
}

/// [`Error::Interrupted`] if a listener asked to stop.
///
/// # Errors
/// That one.
pub fn proceed(flow: ControlFlow<()>) -> Result<()> {
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(Error::Interrupted),
    }
}

impl From<kiln_clip::Error> for Error {
    fn from(error: kiln_clip::Error) -> Self {
        if error.is_stopped() { Self::Interrupted } else { Self::Clip(error) }
    }
}

impl From<kiln_unet::Error> for Error {
    fn from(error: kiln_unet::Error) -> Self {
        if error.is_stopped() { Self::Interrupted } else { Self::Unet(error) }
    }
}

impl From<kiln_network::Error> for Error {
    fn from(error: kiln_network::Error) -> Self {
        if error.is_stopped() { Self::Interrupted } else { Self::Network(error) }
    }
}

impl From<kiln_vae::Error> for Error {
    fn from(error: kiln_vae::Error) -> Self {
        if error.is_stopped() { Self::Interrupted } else { Self::Vae(error) }
    }
}

impl From<kiln_nn::Error> for Error {
    fn from(error: kiln_nn::Error) -> Self {
        if error.is_stopped() { Self::Interrupted } else { Self::Nn(error) }
    }
}

impl From<kiln_weights::Error> for Error {
    fn from(error: kiln_weights::Error) -> Self {
        if error.is_stopped() { Self::Interrupted } else { Self::Weights(error) }
    }
}

impl From<kiln_ops::Error> for Error {
    fn from(error: kiln_ops::Error) -> Self {
        if matches!(error, kiln_ops::Error::Stopped) { Self::Interrupted } else { Self::Ops(error) }
    }
}

impl From<kiln_request::Error> for Error {
    fn from(error: kiln_request::Error) -> Self {
        match error {
            kiln_request::Error::Scheduler(error) => error.into(),
            kiln_request::Error::Files(error) => Self::Files(error),
            kiln_request::Error::Models(error) => error.into(),
            kiln_request::Error::Media(error) => Self::Media(error),
            kiln_request::Error::Candle(error) => Self::Candle(error),
            kiln_request::Error::Upscale(error) => error.into(),
            other => Self::Request(other),
        }
    }
}

impl From<kiln_scheduler::Error> for Error {
    fn from(error: kiln_scheduler::Error) -> Self {
        match error {
            kiln_scheduler::Error::Interrupted => Self::Interrupted,
            // A sampler's arithmetic may run out of GPU memory, which is not an error of the request.
            kiln_scheduler::Error::Tensor(error) => Self::Candle(error),
            kiln_scheduler::Error::Ops(error) => error.into(),
            other => Self::Scheduler(other),
        }
    }
}

impl From<kiln_upscale::Error> for Error {
    fn from(error: kiln_upscale::Error) -> Self {
        match error {
            kiln_upscale::Error::Interrupted => Self::Interrupted,
            error if error.is_stopped() => Self::Interrupted,
            kiln_upscale::Error::Weights(error) => Self::Weights(error),
            other => Self::Upscale(other),
        }
    }
}

impl From<kiln_models::Error> for Error {
    fn from(error: kiln_models::Error) -> Self {
        match error {
            kiln_models::Error::Interrupted => Self::Interrupted,
            kiln_models::Error::Files(error) => Self::Files(error),
            kiln_models::Error::Clip(error) => error.into(),
            kiln_models::Error::Unet(error) => error.into(),
            kiln_models::Error::Vae(error) => error.into(),
            kiln_models::Error::Weights(error) => error.into(),
            kiln_models::Error::Scheduler(error) => error.into(),
            other => Self::Models(other),
        }
    }
}

impl From<kiln_network::text::Error> for Error {
    fn from(error: kiln_network::text::Error) -> Self {
        use kiln_network::text::Error as Text;
        match error {
            error if error.is_stopped() => Self::Interrupted,
            Text::Option { name, found, expected } => Self::value(name, found, expected),
            Text::Weights(error) => Self::Weights(error),
            Text::Nn(error) => Self::Nn(error),
            other => Self::Text(other),
        }
    }
}
