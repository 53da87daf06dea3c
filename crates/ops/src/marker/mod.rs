//! A point in the work of a card that the host can wait for: a CUDA event.
//!
//! A card works on when calls return; waiting for all of it would leave it idle until the host has given it more. Waiting
//! for a point before the last work does not.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(test)]
mod tests;

pub use cuda::Marker;
