//! Memory pools and memory accounting.
//!
//! One policy (size classes, splitting, coalescing, trimming, statistics) is shared by all pools: [`Arena`] is a table
//! of blocks that only has addresses, so that it serves any kind of memory, and [`Policy`] holds its parameters.
//! [`HostPool`], the global allocator of Kiln's programs, uses it to keep large blocks of host memory instead of
//! returning them to the kernel. [`PinnedPool`] is pinned memory for copies to a GPU, and [`DevicePool`] a GPU's
//! memory, in which the driver splits and coalesces blocks. [`Faults`] makes their requests fail, for tests.
//! [`ProcessMemory`], [`PageFaults`] and [`SystemMemory`] are statistics of the system. A [`Ledger`] computes the
//! memory of a run in advance.
//!
//! This crate knows no tensors and no networks.
//!
//! ```
//! use kiln_mempool::{Arena, Policy};
//!
//! let policy = Policy { granule: 4096, divisions: 8, split: 4096 };
//! let mut arena = Arena::<16>::new();
//! assert!(arena.add(0x10_0000..0x20_0000));
//! let first = arena.allocate(&policy, 100_000).unwrap().addresses;
//! assert!(arena.free(first.start));
//! let second = arena.allocate(&policy, 90_000).unwrap().addresses;
//! assert_eq!(second.end, first.end); // the same memory again
//! assert_eq!(arena.statistics().reuse_rate(), 0.5);
//! ```
#![deny(unsafe_code)] // allowed in the pools

mod arena;
mod cgroup;
mod device;
mod error;
mod faults;
mod host;
mod ledger;
mod lock;
mod pinned;
mod plan;
mod platform;
mod policy;
mod process;
mod replay;
mod signal;
mod statistics;
mod system;
mod trace;

pub use arena::{Allocation, Arena};
#[cfg(feature = "cuda")]
pub use device::{AllocationTrace, Scratch, ScratchPlan, manage_stream, trace_allocations};
pub use device::{DeviceCalls, DeviceMemory, DevicePool, DevicePoolConfig};
pub use error::{Error, Result};
pub use faults::Faults;
pub use host::{HostPool, LIMIT, Number};
pub use ledger::{Held, Ledger, Rounding};
pub use pinned::{PinnedBlock, PinnedConfig, PinnedPool};
pub use plan::{Lifetime, Plan};
pub use policy::Policy;
pub use process::{PageFaults, ProcessMemory};
pub use replay::{ReplayPolicy, Replayed, TorchOptions, replay};
pub use signal::ignore_file_size_signal;
pub use statistics::Statistics;
pub use system::SystemMemory;
pub use trace::{Category, CategoryScope, EventKind, MemoryEvent, MemoryRecorder, MemoryTrace, Pool, mark_stage};
