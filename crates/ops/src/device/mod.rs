//! The devices of this machine: what the processor can do, which cards there are, and how a card is opened.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
mod processor;
mod uninit;

pub use cuda::{cards, close, open_beside, open_card};
pub use processor::{Processor, processor};
pub use uninit::unwritten;

/// A CUDA card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Its number among this machine's cards.
    pub ordinal: usize,
    /// The maker's name for it.
    pub name: String,
    /// Compute capability, major and minor: what code it runs.
    pub compute_capability: (i32, i32),
    /// Streaming multiprocessors.
    pub multiprocessors: usize,
    /// Memory that is free, in bytes.
    pub memory_free: usize,
    /// Memory in all, in bytes.
    pub memory_total: usize,
}

/// The cards that a build with CUDA finds, and the versions that it runs on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cards {
    /// The cards.
    pub cards: Vec<Card>,
    /// The newest CUDA version that the driver runs (13.0 is 13000).
    pub driver_version: i32,
    /// The version of the cuBLAS library that was loaded.
    pub cublas_version: i32,
}
