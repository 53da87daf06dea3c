//! Fault injection: a test makes an allocation fail and checks how the run handles it.
//!
//! All requests that Kiln's pools may refuse are counted in one sequence, of host, pinned and GPU memory: the results
//! and buffers of CPU operators, slabs, staging buffers, and, with the feature `interpose`, every tensor on a GPU.
//! Other allocations of a program (a `Vec` of its own) cannot fail and are not counted.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// Whether requests are counted. If not, a request costs one relaxed load more.
static ACTIVE: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicU64 = AtomicU64::new(0);
/// The first request that fails, and the first later one that succeeds.
static FROM: AtomicU64 = AtomicU64::new(u64::MAX);
static UNTIL: AtomicU64 = AtomicU64::new(u64::MAX);
static ONE: Mutex<()> = Mutex::new(());

/// Counts the requests of the process while it lives, and makes some of them fail.
///
/// A process has one at a time: a second waits until the first is dropped.
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
    /// Only counts.
    pub fn count() -> Self {
        Self::new(u64::MAX, u64::MAX)
    }

    /// Makes request `n` fail, counted from 0. A retry succeeds.
    pub fn fail_once(n: u64) -> Self {
        Self::new(n, n.saturating_add(1))
    }

    /// Makes request `n`, counted from 0, and all after it fail.
    pub fn fail_from(n: u64) -> Self {
        Self::new(n, u64::MAX)
    }

    /// The number of requests so far.
    pub fn seen(&self) -> u64 {
        COUNT.load(Ordering::SeqCst)
    }

    fn new(from: u64, until: u64) -> Self {
        let one = ONE.lock();
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

/// Whether the next request must fail. Every request that a pool may refuse calls this once.
pub(crate) fn should_fail() -> bool {
    if !ACTIVE.load(Ordering::Relaxed) {
        return false;
    }
    let n = COUNT.fetch_add(1, Ordering::SeqCst);
    (FROM.load(Ordering::SeqCst)..UNTIL.load(Ordering::SeqCst)).contains(&n)
}
