//! The errors of this crate.

use std::path::PathBuf;

/// The reasons why parameters could not be read. Every message names the file and the tensor, if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be opened, mapped or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// A component's folder has no file with weights.
    #[error("{}: no weights found, looked for {}", folder.display(), looked_for.join(", "))]
    NoWeights {
        /// The folder.
        folder: PathBuf,
        /// The names that were tried.
        looked_for: Vec<String>,
    },
    /// A file is not a valid checkpoint.
    #[error("{}: {problem}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The problem, and the remedy.
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
    /// A tensor is stored in a type that is not a weight type.
    #[error("{origin}: tensor `{key}` is stored as {found}, expected one of F64, F32, F16, BF16, F8_E4M3, F8_E5M2")]
    StoredDType {
        /// The file or folder.
        origin: String,
        /// The tensor.
        key: String,
        /// The type in the file.
        found: String,
    },
    /// A scale of a tensor is infinite or no number.
    #[error(
        "{origin}: tensor `{key}`, stored as {dtype}, has a scale that is infinite or no number; download the file again"
    )]
    Scale {
        /// The file or folder.
        origin: String,
        /// The tensor.
        key: String,
        /// The type in the file.
        dtype: crate::stored_type::StoredType,
    },
    /// A checkpoint could not be written.
    #[error("{0}")]
    Write(std::io::Error),
    /// This type is not supported for weights in memory.
    #[error("weights cannot be stored in memory as {0:?}, expected F32, F16 or BF16")]
    SlabDType(candle_core::DType),
    /// A network was run before its weights were loaded.
    #[error("segment `{0}` has no weights yet: load them before running the network")]
    NotLoaded(String),
    /// The budget for weights on a device is below the minimum of every plan.
    #[error(
        "the weights need at least {needed} bytes on the device at once, including a ring for the largest segment, but the budget is {given}"
    )]
    Budget {
        /// The minimum.
        needed: usize,
        /// The budget.
        given: usize,
    },
    /// A segment was run inside another one that occupies its slot of the ring.
    #[error("segment `{segment}` cannot run while `{busy}` runs: a ring of {ring} bytes does not have room for both")]
    RingBusy {
        /// The segment that was entered.
        segment: String,
        /// The segment that occupies its slot.
        busy: String,
        /// The ring's size.
        ring: usize,
    },
    /// The stream has other segments, or another type, than its plan.
    #[error("the plan of resident segments is for {planned}, not for {found}")]
    OtherPlan {
        /// The segments and type of the plan.
        planned: String,
        /// The segments and type of the stream.
        found: String,
    },
    /// The operating system could not create a thread that reads streamed weights.
    #[error(
        "cannot create a thread to read streamed weights: {source}; use fewer threads, or keep the weights in memory"
    )]
    Thread {
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The thread that reads streamed weights has ended.
    #[error("segment `{0}` can no longer be read: the thread that reads streamed weights has ended")]
    StreamEnded(String),
    /// A packed weight does not have the size of its shape.
    #[error(transparent)]
    Ops(#[from] kiln_ops::Error),
    /// An error of candle: an allocation that failed, or a device's failure.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Whether the caller's [`kiln_ops::StopSign`] was set.
    pub fn is_stopped(&self) -> bool {
        matches!(self, Self::Ops(kiln_ops::Error::Stopped))
    }

    /// Whether memory ran out. A smaller workload may then succeed.
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
