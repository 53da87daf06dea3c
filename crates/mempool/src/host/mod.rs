//! The pool of host memory: a global allocator that keeps large blocks.
//!
//! candle's CPU tensors are `Vec`s, so only the global allocator of the program can manage them. The system's allocator
//! returns large blocks to the kernel when they are freed, and every new one costs a page fault for each 4 KiB, in
//! which the kernel clears the page: half a million faults a step for Stable Diffusion 1.5 at 512x512 in f32. This pool
//! serves requests of at least [`LIMIT`] bytes from its own address space and keeps freed memory for the next request.
//! All smaller requests are the system's. After the first step, a step makes no system call for memory.

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
