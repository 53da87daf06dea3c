//! GPU memory.
//!
//! # Allocations
//!
//! candle allocates with `cuMemAllocAsync`, and has no place to pass another allocator. `cuda-loader` defines the
//! functions of the driver that are called, but with the feature `interpose` leaves this one and `cuMemFreeAsync` to
//! `mempool` (`mempool/src/device/interpose.rs`). Through them tensors are allocated
//! from the `DevicePool` of their engine, which serves the engine's streams, are counted, bounded and traced, can be made to fail in tests, and get planned
//! addresses in a recorded step, which then works in one block of the pool and allocates nothing at replay.
//!
//! A process may have other users of CUDA, as a Python module next to PyTorch has. Three rules keep their allocations
//! apart:
//!
//! - The feature is off by default. The programs turn it on (`kiln-cli/cuda`); a shared library leaves it off, so that
//!   it does not define symbols of the driver at all.
//! - The functions handle only the streams that `ops::device` opened (`manage_stream`), and memory that was allocated
//!   there. All other calls are passed to the driver, so that a build which turns the feature on by accident (features
//!   of a workspace are unified) does not count, bound or move what others allocate.
//! - The current memory pool of a device is never set: `DevicePool` is passed to each allocation
//!   (`cuMemAllocFromPoolAsync`).
//!
//! Without the feature everything runs, with the same results. Tensors come from the driver's default pool, whose
//! memory is kept until the last engine is dropped (`DevicePool` raises its release threshold and restores it).
//! `--vram-budget` bounds the plan and not the pool, memory traces have no GPU allocations, and the memory of a
//! recorded step belongs to its CUDA graph, in addition to the pool.
//!
//! Rejected: a flag for the scope of a thread, since tensors are freed, and weights loaded, on other threads;
//! allocating results in `ops` instead of candle, since candle frees them with the driver's function, which does not
//! know the addresses inside of a block.

#[cfg(feature = "cuda")]
mod allocator;
#[cfg(any(test, feature = "cuda"))]
mod block;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(feature = "interpose")]
mod interpose;
#[cfg(all(feature = "cuda", not(feature = "interpose")))]
#[path = "no_interpose.rs"]
mod interpose;
#[cfg(feature = "cuda")]
mod scratch;

#[cfg(feature = "cuda")]
pub use allocator::manage_stream;
#[cfg(feature = "cuda")]
pub use block::{AllocationTrace, ScratchPlan};
pub use cuda::DevicePool;
#[cfg(feature = "cuda")]
pub use scratch::{Scratch, trace_allocations};

/// The configuration of a [`DevicePool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevicePoolConfig {
    /// Whether freed memory is kept for later allocations. Otherwise it is released whenever the stream is
    /// synchronized, which is the driver's default.
    pub keep: bool,
    /// The most bytes that the pool may take from the GPU.
    pub ceiling: Option<u64>,
}

impl Default for DevicePoolConfig {
    fn default() -> Self {
        Self { keep: true, ceiling: None }
    }
}

/// Statistics of a [`DevicePool`] in bytes. Memory that the driver allocates for a CUDA graph is outside of the pool.
/// With the feature `interpose`, Kiln's graphs have none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceMemory {
    /// In use by tensors.
    pub used: u64,
    /// The peak of `used` since the pool was made or [`DevicePool::reset_peaks`].
    pub peak_used: u64,
    /// Reserved by the pool: in use, or kept for later allocations.
    pub reserved: u64,
    /// The peak of `reserved` since then.
    pub peak_reserved: u64,
    /// Reserved by CUDA graphs.
    pub graphs: u64,
    /// The peak of `graphs` since then.
    pub peak_graphs: u64,
    /// The decrease of the GPU's free memory since before the pool was made, with that of libraries, machine code and
    /// other processes.
    pub driver: u64,
}

/// Allocations of GPU memory since the process began, over all GPUs and pools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceCalls {
    /// Allocations.
    pub requests: u64,
    /// Calls of the driver for allocations and frees. An allocation from the block of a recorded step needs none, and a
    /// replay allocates nothing.
    pub driver: u64,
}
