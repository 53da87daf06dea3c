//! The pool of host memory: a global allocator that keeps large blocks.
//!
//! candle's tensors on the processor are `Vec`s, so nothing less than the program's allocator sees them. A system's
//! allocator returns large blocks to the kernel as soon as they are freed, and every new one costs a page fault for
//! each 4 KiB, in which the kernel clears the page: half a million a step for Stable Diffusion 1.5 at 512x512 in f32.
//! Here requests of [`LIMIT`] bytes and more are served from address space of our own, and what is freed waits for the
//! next request; all others are the system's. After the first step a step asks the system for nothing.

#[cfg(all(test, unix))]
mod tests;

mod fallible;
#[cfg_attr(not(unix), path = "no_map.rs")]
mod map;
mod pool;

use crate::policy::Policy;
use crate::statistics::Statistics;

/// Requests of at least this many bytes are the pool's. glibc asks the kernel for each from 128 KiB on; a matrix
/// product's buffers, a hundred KiB for each thread and operator, should wait in the pool, too.
pub const LIMIT: usize = 32 << 10;

/// The allocator. It has no fields: a process has one pool, behind every value of this type.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: kiln_mempool::HostPool = kiln_mempool::HostPool;
///
/// let block = vec![0u8; 1 << 20];
/// assert!(kiln_mempool::HostPool::statistics().used >= block.len());
/// ```
///
/// Memory that is out gives null, as the trait wants. A block is found by its address, so that threads, forks (the
/// child has the pool as the parent had it) and the process's end need no care. Where there is no `mmap`, all requests
/// are the system's.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostPool;

impl HostPool {
    /// The counters of this moment; all zeros where the program has another allocator.
    pub fn statistics() -> Statistics {
        pool::statistics()
    }

    /// Starts the peaks of [`HostPool::statistics`] anew, from what there is now.
    pub fn reset_peaks() {
        pool::reset_peaks();
    }

    /// The pool's rules, for requests from [`LIMIT`] bytes on.
    pub fn policy() -> &'static Policy {
        &pool::POLICY
    }

    /// The bytes that the pool counts for a request of `bytes`: its class, or 0 where the request is the system's.
    pub fn block_size(bytes: usize) -> usize {
        pool::block_size(bytes)
    }

    /// Gives what waits back to the system where it is more than `threshold`, from 0 to 1, of what the pool keeps, and
    /// says how many bytes that was. Other threads may go on meanwhile; the next requests fault pages in again.
    pub fn trim(threshold: f64) -> usize {
        pool::trim(threshold)
    }
}
