//! The pool of host memory: a global allocator that keeps large blocks.
//!
//! candle's CPU tensors are `Vec`s, so only the global allocator of the program can manage them. The system's allocator
//! returns large blocks to the kernel when they are freed, and every new one costs a page fault for each 4 KiB, in
//! which the kernel clears the page: half a million faults a step for Stable Diffusion 1.5 at 512x512 in f32. This pool
//! serves requests of at least [`LIMIT`] bytes from its own address space and keeps freed memory for the next request.
//! All smaller requests are the system's. After the first step, a step makes no system call for memory.
//!
//! # Use of memory in a run
//!
//! candle's CPU tensors are `Vec`s, so the programs set a global allocator, `mempool::HostPool`. Requests of 32 KiB and
//! more are served from its own address space. Freed memory is kept for the next request instead of being returned to
//! the kernel, which would clear every page again. `mempool::Arena` decides which block serves which request. It is a
//! table of addresses that touches no memory, so that pinned memory, GPUs and recorded traces use the same rules: a
//! request takes the block that needs the least new memory, then the smallest, then the lowest. After the first step a
//! step makes no page fault and no system call for memory (`crates/bench/tests/host_pool.rs`). Results of operators are
//! not cleared before they are written.
//!
//! Memory is released in this order during a run:
//!
//! - The pages of a mapped file, as soon as their parameter is in its slab (`ParamSource::release`).
//! - On the CPU the text encoders, as soon as the prompt is encoded. Another prompt reads them again. The last
//!   conditions are cached. On a GPU the same, where the other networks have room in memory and they do not.
//! - The input of an upsampling, and the feature maps of a residual block, as soon as the next one exists.
//! - Before decoding, free memory of the pool, if it is fragmented.
//!
//! The U-Net stays loaded while images are decoded: the next image needs it.
//!
//! The allocator's limit and the thread pool of a program belong to the program, not to the library: `cli` sets both
//! (`start_threads`). An engine with `Setup::threads` has pools of its own (`setup/threads.rs`): one runs its
//! operators, the other packs weights that are streamed, for which operators wait.

#[cfg(all(test, unix))]
mod tests;

mod fallible;
mod file_blocks;
#[cfg_attr(not(unix), path = "no_map.rs")]
mod map;
mod pool;

pub use file_blocks::Number;

use crate::policy::Policy;
use crate::statistics::Statistics;

/// Requests of at least this many bytes are served by the pool. glibc calls the kernel for each request from 128 KiB
/// on; the pool should also keep the buffers of matrix products, which have about a hundred KiB for each thread and
/// operator.
pub const LIMIT: usize = 32 << 10;

/// The allocator. It has no fields: a process has one pool, which all values of this type share.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: kiln_mempool::HostPool = kiln_mempool::HostPool;
///
/// let block = vec![0u8; 1 << 20];
/// assert!(kiln_mempool::HostPool::statistics().used >= block.len());
/// ```
///
/// Without memory it returns null, as the trait requires. A block is found by its address, so blocks may be freed on
/// any thread and in a forked child, which has the same pool as its parent. Without `mmap` all requests are the
/// system's.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostPool;

impl HostPool {
    /// The current statistics: all zeros where the program has another allocator.
    pub fn statistics() -> Statistics {
        pool::statistics()
    }

    /// Leaves the settings of the system's allocator as they are. A program has it keep the memory of small blocks from the
    /// pool's first request on; a library in another program's process calls this before it allocates.
    pub fn leave_system_allocator() {
        pool::leave_system_allocator();
    }

    /// Resets the peaks of [`HostPool::statistics`] to the current values.
    pub fn reset_peaks() {
        pool::reset_peaks();
    }

    /// The policy of the pool, for requests of at least [`LIMIT`] bytes.
    pub fn policy() -> &'static Policy {
        &pool::POLICY
    }

    /// The size of the block for a request of `bytes`: its size class, or 0 where the system serves it.
    pub fn block_size(bytes: usize) -> usize {
        pool::block_size(bytes)
    }

    /// Releases the unused memory to the system if it is more than `threshold`, from 0 to 1, of the reserved memory.
    /// Returns the released bytes. Other threads may allocate meanwhile; the next requests fault pages in again.
    pub fn trim(threshold: f64) -> usize {
        pool::trim(threshold)
    }
}
