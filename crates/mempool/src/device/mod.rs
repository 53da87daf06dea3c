//! A card's memory.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;

pub use cuda::DevicePool;

/// What a [`DevicePool`] counts, in bytes. Memory of recorded graphs is the driver's own, beside the pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// In use by tensors.
    pub used: u64,
    /// The most there was in use since the pool was made or [`DevicePool::reset_peaks`].
    pub peak_used: u64,
    /// Held by the pool, in use or kept for what comes.
    pub reserved: u64,
    /// The most that it held since then.
    pub peak_reserved: u64,
    /// Held by recorded graphs.
    pub graphs: u64,
    /// The most that they held since then.
    pub peak_graphs: u64,
    /// What the driver has less to give than before the pool was made, whoever has it: libraries and code too.
    pub driver: u64,
}
