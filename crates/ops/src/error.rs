//! What an operator refuses.

use candle_core::DType;

#[cfg(feature = "cuda")]
use crate::cuda::driver_is_out_of_memory;
#[cfg(not(feature = "cuda"))]
use crate::no_cuda::driver_is_out_of_memory;

/// Why an operator could not run. Operators check their operands before they touch memory.
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
        /// What is wrong and which values are possible.
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
    /// This build cannot use cards.
    #[error("this build of Kiln has no CUDA; use kiln-cuda, or the processor")]
    NoCuda,
    /// CUDA's driver or a library of it refused a call.
    #[error("{0}")]
    Driver(String),
    /// A library of CUDA's has no memory for what it keeps.
    #[error("{0}: no memory of the card is left for it")]
    LibraryMemory(&'static str),
    /// A pool has no memory for a result or a buffer.
    #[error(transparent)]
    Pool(#[from] kiln_mempool::Error),
    /// candle reported an error: a device's own failure, or memory that could not be had.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
}

impl Error {
    /// Whether there was no memory: less work at a time, or memory that others give back, may help.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::LibraryMemory(_) => true,
            Self::Pool(error) => error.is_out_of_memory(),
            Self::Candle(error) => is_out_of_memory(error),
            _ => false,
        }
    }
}

/// Whether candle had no memory of a card, whatever it wrapped the driver's error into.
pub fn is_out_of_memory(error: &candle_core::Error) -> bool {
    use candle_core::Error as Candle;
    match error {
        Candle::Cuda(error) => driver_is_out_of_memory(error.as_ref()),
        Candle::Context { inner, .. } | Candle::WithPath { inner, .. } | Candle::WithBacktrace { inner, .. } => {
            is_out_of_memory(inner)
        }
        Candle::WrappedContext { wrapped, .. } => wrapped.downcast_ref().is_some_and(is_out_of_memory),
        _ => false,
    }
}

/// A result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Refuses `found` unless it is `expected`.
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
    fn a_pool_s_refusal_is_told_from_other_errors() {
        let refused = kiln_mempool::Error::OutOfMemory { pool: "host", asked: 1, used: 0, ceiling: None };
        assert!(Error::from(refused).is_out_of_memory() && Error::LibraryMemory("cuDNN").is_out_of_memory());
        assert!(!Error::from(candle_core::Error::Msg("out of memory".into()).context("a layer")).is_out_of_memory());
        assert!(!Error::NoCuda.is_out_of_memory());
    }
}
