//! What can be wrong with a checkpoint.

use std::path::PathBuf;

/// Why parameters could not be had. Every message names the file and, where there is one, the tensor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, mapped or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// No file with a component's weights is in its folder.
    #[error("{}: no weights found, looked for {}", folder.display(), looked_for.join(", "))]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// The names that were tried.
        looked_for: Vec<String>,
    },
    /// A file is no valid checkpoint.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A tensor is not in the checkpoint.
    #[error("{origin}: tensor `{key}` is missing, expected shape {expected:?}")]
    Missing {
        /// The file or folder.
        origin: String,
        /// The tensor.
        key: String,
        /// The shape that the network needs.
        expected: Vec<usize>,
    },
    /// A tensor has another shape than the network needs.
    #[error("{origin}: tensor `{key}` has shape {found:?}, expected {expected:?}; is it from another model?")]
    Shape {
        /// The file or folder.
        origin: String,
        /// The tensor.
        key: String,
        /// The shape that the network needs.
        expected: Vec<usize>,
        /// The shape in the file.
        found: Vec<usize>,
    },
    /// A tensor is stored in a type that holds no weights.
    #[error("{origin}: tensor `{key}` is stored as {found}, expected one of F64, F32, F16, BF16, F8_E4M3, F8_E5M2")]
    StoredDType {
        /// The file or folder.
        origin: String,
        /// The tensor.
        key: String,
        /// The type in the file.
        found: String,
    },
    /// A checkpoint could not be written.
    #[error("{0}")]
    Write(std::io::Error),
    /// Weights cannot be kept in this type.
    #[error("weights cannot be kept as {0:?}, expected F32, F16 or BF16")]
    SlabDType(candle_core::DType),
    /// A network was run before its weights were loaded.
    #[error("segment `{0}` has no weights yet: load them before running the network")]
    NotLoaded(String),
    /// A budget for weights on a device is too small for any way to run.
    #[error(
        "the weights need at least {needed} bytes on the device at once, a ring for the largest part, and may have {given}"
    )]
    Budget {
        /// The least that is possible.
        needed: usize,
        /// What was allowed.
        given: usize,
    },
    /// A segment was run inside of another one whose weights lie where its own would be copied to.
    #[error("segment `{segment}` is to run while `{busy}` does, and a ring of {ring} bytes does not hold both")]
    RingBusy {
        /// The segment that was entered.
        segment: String,
        /// The one in whose place it belongs.
        busy: String,
        /// The ring's size.
        ring: usize,
    },
    /// A stream was asked for other segments, or another type, than its plan was made for.
    #[error("the plan of what stays on the device is for {planned}, not for {found}")]
    OtherPlan {
        /// What the plan is for.
        planned: String,
        /// What was to be streamed.
        found: String,
    },
    /// The system gives no thread to read streamed weights.
    #[error("no thread to read streamed weights: {source}; use fewer threads, or keep the weights in memory")]
    Thread {
        /// What the system said.
        source: std::io::Error,
    },
    /// The thread that reads streamed weights is gone.
    #[error("segment `{0}` cannot be read any more: the thread that reads streamed weights has ended")]
    StreamEnded(String),
    /// A packed weight does not have the size of its shape.
    #[error(transparent)]
    Ops(#[from] kiln_ops::Error),
    /// candle reported an error: memory that could not be had, or a device's failure.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Whether there was no memory: less work at a time may help.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Ops(error) => error.is_out_of_memory(),
            Self::Candle(error) => kiln_ops::is_out_of_memory(error),
            _ => false,
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
