//! A card's memory.

#[cfg(any(test, feature = "cuda"))]
mod block;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(feature = "cuda")]
mod hook;
#[cfg(feature = "cuda")]
mod scratch;

#[cfg(feature = "cuda")]
pub use block::{Rehearsal, ScratchPlan};
pub use cuda::DevicePool;
#[cfg(feature = "cuda")]
pub use scratch::{Scratch, rehearse};

/// How a [`DevicePool`] works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePoolConfig {
    /// Keep what is freed for what comes. Otherwise it goes back whenever the card's work is waited for, which is the
    /// driver's own default.
    pub keep: bool,
    /// The most bytes that the pool ever takes.
    pub ceiling: Option<u64>,
}

impl Default for DevicePoolConfig {
    fn default() -> Self {
        Self { keep: true, ceiling: None }
    }
}

/// What a [`DevicePool`] counts, in bytes. Memory that the driver makes inside of recorded graphs is its own, beside the
/// pool; Kiln's graphs have none.
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

/// Requests for the memory of cards since the process began, of whichever card and pool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCalls {
    /// Requests.
    pub requests: u64,
    /// Calls of the driver that these and the frees needed: what is served from a recorded step's block needs none, and
    /// a replay asks for nothing.
    pub driver: u64,
}
