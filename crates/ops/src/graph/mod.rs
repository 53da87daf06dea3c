//! CUDA graphs: work on a GPU that is captured once and launched again as one.
//!
//! A launch costs the host one call, whatever the number of kernels. It does the same work at the same addresses every
//! time: inputs are written into the tensors of the capture, and the result is in a tensor from outside. Tensors that
//! exist only inside lie in one block of the GPU's pool, at addresses that were planned from the first run: a launch
//! allocates nothing. Between launches other stages may use the block.

mod calls;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(any(test, feature = "cuda"))]
mod recorder;
mod recording;
#[cfg(test)]
mod tests;

pub use calls::RecordedCalls;
pub use cuda::{Graph, Prepared, is_recordable, prepare};
pub use recording::Recording;
