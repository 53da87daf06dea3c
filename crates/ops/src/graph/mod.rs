//! Work on a card that is recorded once and started again as one: a CUDA graph.
//!
//! A recorded run costs the host one call, whatever number of kernels it has. It does the same work at the same
//! addresses every time: inputs are written into the tensors that it was recorded with, and its result lies in a tensor
//! that was made before. What the run allocates and frees between lies in one block of the card's pool, at places that
//! were planned when the run was prepared: a replay allocates nothing. Between replays the block can be lent to others.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(any(test, feature = "cuda"))]
mod recorder;
#[cfg(test)]
mod tests;

pub use cuda::{Graph, Prepared, is_recordable, prepare};
