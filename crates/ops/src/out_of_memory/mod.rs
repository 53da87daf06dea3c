//! Recognizes errors of candle that mean that a GPU has no memory left.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;

use candle_core::Error;

/// Whether an error of candle means that a GPU has no memory left, whatever context it is wrapped in.
pub fn is_out_of_memory(error: &Error) -> bool {
    match error {
        Error::Cuda(error) => cuda::is_out_of_memory(error.as_ref()),
        Error::Context { inner, .. } | Error::WithPath { inner, .. } | Error::WithBacktrace { inner, .. } => {
            is_out_of_memory(inner)
        }
        Error::WrappedContext { wrapped, .. } => wrapped.downcast_ref().is_some_and(is_out_of_memory),
        _ => false,
    }
}
