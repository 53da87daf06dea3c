//! Points in the work of a GPU that the host can wait for: CUDA events.
//!
//! The GPU works on after calls have returned. If the host waited for all of it, the GPU would be idle until the host
//! submits more work. If it waits for a point before the last work, the GPU stays busy.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(test)]
mod tests;

pub use cuda::Marker;
