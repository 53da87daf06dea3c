//! What an operator refuses.

use candle_core::DType;

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
    /// candle reported an error: a device's own failure, or memory that could not be had.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
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
