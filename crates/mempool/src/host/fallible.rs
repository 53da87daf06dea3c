//! Host memory that may be refused.
//!
//! A `Vec` that cannot grow ends the process. What networks need in large blocks is asked for here instead: under the
//! ceiling, with an error that the engine can meet by doing less at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::HostPool;
use crate::error::{Error, Result};
use crate::faults;

/// The most that the pool may have in use; `usize::MAX` is no bound.
static CEILING: AtomicUsize = AtomicUsize::new(usize::MAX);

impl HostPool {
    /// Bounds the pool: requests that say so ([`HostPool::vector`], [`HostPool::check`]) fail where with them more than
    /// `bytes` were in use. `None` takes the bound away.
    ///
    /// All blocks of the pool count, those of plain `Vec`s too, but none of these is refused: after them the next
    /// request that may fail does. What waits in the pool is given back rather than that in all more than the ceiling
    /// is held. In a program with another allocator nothing is counted, and a bound means that a single request is not
    /// larger. Threads that ask at the same moment may pass it by what they ask for together.
    pub fn set_ceiling(bytes: Option<usize>) {
        CEILING.store(bytes.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// The bound of [`HostPool::set_ceiling`].
    pub fn ceiling() -> Option<usize> {
        Some(CEILING.load(Ordering::Relaxed)).filter(|&ceiling| ceiling < usize::MAX)
    }

    /// An empty vector with room for `len` elements.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the ceiling, the system or a test ([`crate::Faults`]) has no such block.
    pub fn vector<T>(len: usize) -> Result<Vec<T>> {
        let bytes = len.saturating_mul(size_of::<T>());
        Self::check(bytes)?;
        let mut vector = Vec::new();
        vector.try_reserve_exact(len).map_err(|_| refused(bytes))?;
        Ok(vector)
    }

    /// Says whether `bytes` more could be had now: before work whose parts cannot stop half way.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the ceiling or a test refuses them.
    pub fn check(bytes: usize) -> Result<()> {
        if faults::strike() {
            return Err(refused(bytes));
        }
        let Some(ceiling) = Self::ceiling() else { return Ok(()) };
        let pool = Self::statistics();
        if pool.used.saturating_add(bytes) > ceiling {
            return Err(refused(bytes));
        }
        // A waiting block that fits costs nothing; one that does not fit is held beside the new one.
        if pool.largest_waiting < bytes && pool.reserved.saturating_add(bytes) > ceiling {
            Self::trim(0.0);
        }
        Ok(())
    }
}

fn refused(bytes: usize) -> Error {
    let (used, ceiling) = (HostPool::statistics().used as u64, HostPool::ceiling().map(|ceiling| ceiling as u64));
    Error::OutOfMemory { pool: "host", asked: bytes as u64, used, ceiling }
}
