//! Errors of operators and devices.

use candle_core::DType;

use crate::out_of_memory::is_out_of_memory;

/// Why an operator could not run. Operators check their operands before they allocate or launch anything.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An operand's shape does not fit the operator or the other operands.
    #[error("{op}: {operand} has shape {found:?}, expected {expected}")]
    Shape {
        /// The operator.
        op: &'static str,
        /// The operand's name in the operator's signature.
        operand: &'static str,
        /// The shape that was expected, in the operator's letters.
        expected: String,
        /// The shape that was found.
        found: Vec<usize>,
    },
    /// An operand's dtype differs from the first operand's.
    #[error("{op}: {operand} is {found:?}, expected {expected:?}; convert it first")]
    DType {
        /// The operator.
        op: &'static str,
        /// The operand's name in the operator's signature.
        operand: &'static str,
        /// The dtype that was expected.
        expected: DType,
        /// The dtype that was found.
        found: DType,
    },
    /// A number of the operator's configuration is out of range.
    #[error("{op}: {message}")]
    Config {
        /// The operator.
        op: &'static str,
        /// The problem, and the values that are allowed.
        message: String,
    },
    /// The output tensor cannot be written to.
    #[error("{op}: `out` {problem}")]
    Out {
        /// The operator.
        op: &'static str,
        /// Why it cannot be written to.
        problem: &'static str,
    },
    /// This build has no CUDA.
    #[error("this build of Kiln has no CUDA (the feature `cuda`)")]
    NoCuda,
    /// The driver or a library of CUDA is missing on this machine.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Library(#[from] kiln_cuda_loader::Error),
    /// A call of CUDA's driver or of one of its libraries failed.
    #[error("{0}")]
    Driver(String),
    /// A CUDA library could not allocate its internal memory.
    #[error("{0}: out of GPU memory")]
    LibraryMemory(&'static str),
    /// A device of [`crate::portable::Backend`] failed, or has no kernel for an operator.
    #[error("{0}")]
    Backend(String),
    /// A device of [`crate::portable::Backend`] has no memory.
    #[error("out of GPU memory: {bytes} bytes were refused ({message})")]
    OutOfGpuMemory {
        /// The size of the request.
        bytes: u64,
        /// The driver's message.
        message: String,
    },
    /// A pool has no memory for a result or a buffer.
    #[error(transparent)]
    Pool(#[from] kiln_mempool::Error),
    /// The caller's [`StopSign`](crate::StopSign) was set, so that there is no result.
    #[error("stopped")]
    Stopped,
    /// An error of candle: a failure of the device, or an allocation that failed.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Whether this machine has no NVIDIA driver, or this build no CUDA.
    pub fn is_without_driver(&self) -> bool {
        match self {
            Self::NoCuda => true,
            #[cfg(feature = "cuda")]
            Self::Library(error) => matches!(error, kiln_cuda_loader::Error::NoDriver(_)),
            _ => false,
        }
    }

    /// Whether an allocation failed. Less work at a time, or a trim of the pools, may help.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::LibraryMemory(_) | Self::OutOfGpuMemory { .. } => true,
            Self::Pool(error) => error.is_out_of_memory(),
            Self::Candle(error) => is_out_of_memory(error),
            _ => false,
        }
    }
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error unless `found` is `expected`.
pub(crate) fn expect_shape(op: &'static str, operand: &'static str, found: &[usize], expected: &[usize]) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::Shape { op, operand, expected: format!("{expected:?}"), found: found.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_out_of_memory_is_distinguished_from_other_errors() {
        let refused = kiln_mempool::Error::OutOfMemory { pool: "host", requested: 1, used: 0, ceiling: None };
        assert!(Error::from(refused).is_out_of_memory() && Error::LibraryMemory("cuDNN").is_out_of_memory());
        assert!(!Error::from(candle_core::Error::Msg("out of memory".into()).context("a layer")).is_out_of_memory());
        assert!(!Error::NoCuda.is_out_of_memory());
    }
}
