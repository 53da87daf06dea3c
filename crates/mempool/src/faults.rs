//! Failing on purpose: a test makes an allocation fail and looks what becomes of the run.
//!
//! All requests that Kiln's pools may refuse are counted in one row, of host, page-locked and card memory: the results
//! and buffers of operators on the processor, slabs, staging buffers, and every tensor on a card. What a program
//! allocates elsewhere (a `Vec` of its own) cannot be refused and is not counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Whether anybody counts: what a request pays when nobody does is one relaxed load.
static ACTIVE: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// The first request that fails, and the first after it that does not.
static FROM: AtomicU64 = AtomicU64::new(u64::MAX);
static UNTIL: AtomicU64 = AtomicU64::new(u64::MAX);
static ONE: Mutex<()> = Mutex::new(());

/// Counts the process's requests while it lives, and makes some of them fail.
///
/// There is one at a time in a process: a second waits for the first to go.
///
/// ```
/// use kiln_mempool::{Faults, HostPool};
///
/// let faults = Faults::fail_once(1);
/// assert!(HostPool::vector::<f32>(10).is_ok());
/// assert!(HostPool::vector::<f32>(10).unwrap_err().is_out_of_memory());
/// assert!(HostPool::vector::<f32>(10).is_ok());
/// assert_eq!(faults.seen(), 3);
/// ```
#[derive(Debug)]
pub struct Faults {
    _one: MutexGuard<'static, ()>,
}

impl Faults {
    /// Counts, and fails nothing.
    pub fn count() -> Self {
        Self::new(u64::MAX, u64::MAX)
    }

    /// Makes request `n` fail, counted from 0, and none after it: one that is tried again succeeds.
    pub fn fail_once(n: u64) -> Self {
        Self::new(n, n.saturating_add(1))
    }

    /// Makes request `n`, counted from 0, and all after it fail.
    pub fn fail_from(n: u64) -> Self {
        Self::new(n, u64::MAX)
    }

    /// How many requests there were since.
    pub fn seen(&self) -> u64 {
        COUNT.load(Ordering::SeqCst)
    }

    fn new(from: u64, until: u64) -> Self {
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        COUNT.store(0, Ordering::SeqCst);
        FROM.store(from, Ordering::SeqCst);
        UNTIL.store(until, Ordering::SeqCst);
        ACTIVE.store(true, Ordering::SeqCst);
        Self { _one: one }
    }
}

impl Drop for Faults {
    fn drop(&mut self) {
        ACTIVE.store(false, Ordering::SeqCst);
    }
}

/// Whether the next request is to fail. Every request that a pool may refuse asks once.
pub(crate) fn strike() -> bool {
    if !ACTIVE.load(Ordering::Relaxed) {
        return false;
    }
    let n = COUNT.fetch_add(1, Ordering::SeqCst);
    (FROM.load(Ordering::SeqCst)..UNTIL.load(Ordering::SeqCst)).contains(&n)
}
