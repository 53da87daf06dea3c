//! Fallible allocation of host memory.
//!
//! A `Vec` that cannot grow aborts the process. Large buffers of networks are allocated here instead: under the
//! ceiling, and with an error, after which the engine can retry with less work at a time.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::HostPool;
use crate::error::{Error, Result};
use crate::faults;

/// The limit of the pool's memory in use; `usize::MAX` is no limit.
static CEILING: AtomicUsize = AtomicUsize::new(usize::MAX);

impl HostPool {
    /// Limits the pool: fallible requests ([`HostPool::vector`], [`HostPool::check`]) fail if more than `bytes` would
    /// be in use. `None` removes the limit.
    ///
    /// All blocks of the pool count, including those of plain `Vec`s. These are never refused, but the next fallible
    /// request is. Unused memory of the pool is released before the reserved memory exceeds the limit. In a program
    /// with another allocator nothing is counted, and only a single request that is larger than the limit fails.
    /// Concurrent requests may exceed the limit by their total size.
    pub fn set_ceiling(bytes: Option<usize>) {
        CEILING.store(bytes.unwrap_or(usize::MAX), Ordering::Relaxed);
    }

    /// The limit of [`HostPool::set_ceiling`].
    pub fn ceiling() -> Option<usize> {
        Some(CEILING.load(Ordering::Relaxed)).filter(|&ceiling| ceiling < usize::MAX)
    }

    /// An empty vector with capacity for `len` elements.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] above the limit, without memory of the system, or by fault injection ([`crate::Faults`]).
    pub fn vector<T>(len: usize) -> Result<Vec<T>> {
        let bytes = len.saturating_mul(size_of::<T>());
        Self::check(bytes)?;
        let mut vector = Vec::new();
        vector.try_reserve_exact(len).map_err(|_| refused(bytes))?;
        Ok(vector)
    }

    /// Checks that `bytes` more are available now, before work whose parts cannot stop half way.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] above the limit or by fault injection.
    pub fn check(bytes: usize) -> Result<()> {
        if faults::should_fail() {
            return Err(refused(bytes));
        }
        let Some(ceiling) = Self::ceiling() else { return Ok(()) };
        let pool = Self::statistics();
        if pool.used.saturating_add(bytes) > ceiling {
            return Err(refused(bytes));
        }
        // An unused block that fits is free of cost. One that does not fit is reserved in addition to the new one.
        if pool.largest_unused < bytes && pool.reserved.saturating_add(bytes) > ceiling {
            Self::trim(0.0);
        }
        Ok(())
    }
}

fn refused(bytes: usize) -> Error {
    let (used, ceiling) = (HostPool::statistics().used as u64, HostPool::ceiling().map(|ceiling| ceiling as u64));
    Error::OutOfMemory { pool: "host", requested: bytes as u64, used, ceiling }
}
