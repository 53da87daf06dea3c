//! Work on a card that is recorded once and started again as one: a CUDA graph.
//!
//! A recorded run costs the host one call, whatever number of kernels it has. It does the same work at the same
//! addresses every time: inputs are written into the tensors that it was recorded with, and its result lies in a tensor
//! that was made before. What the run allocates and frees between belongs to the graph.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(test)]
mod tests;

pub use cuda::{Graph, is_recordable, prepare};
