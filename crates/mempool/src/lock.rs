//! A lock for use inside of an allocator.
//!
//! The standard library's mutex may allocate when it is first locked (on some systems), and cannot be unlocked in the
//! child of a fork, where the thread that held it does not exist. This one spins and then yields: it is held only while
//! a table is searched.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

/// Iterations before the thread yields: some hundred nanoseconds.
const SPINS: usize = 64;

pub(crate) struct Lock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: `with` hands the value to one thread at a time, as an exclusive reference.
unsafe impl<T: Send> Sync for Lock<T> {}

/// Releases the lock, after a panic too.
struct Guard<'a>(&'a AtomicBool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl<T> Lock<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Calls `use_it` with the value under the lock. `use_it` must not take the lock again.
    pub(crate) fn with<R>(&self, use_it: impl FnOnce(&mut T) -> R) -> R {
        self.acquire();
        let _guard = Guard(&self.taken);
        // SAFETY: `acquire` has set `taken` from false to true, so no other thread is between there and the guard's
        // drop, which comes after `use_it`. The reference cannot outlive the call.
        use_it(unsafe { &mut *self.value.get() })
    }

    /// Takes the lock without a guard: around a fork, so that the child sees a consistent value.
    pub(crate) fn acquire(&self) {
        let mut spins = 0;
        while self.taken.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            spins += 1;
            if spins < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
    }

    /// Releases the lock after [`Lock::acquire`].
    pub(crate) fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_accesses_the_value() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| lock.with(|value| *value += 1)));
            }
        });
        assert_eq!(lock.with(|value| *value), 40_000);
    }

    #[test]
    fn a_panic_releases_the_lock() {
        let lock = Lock::new(1);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lock.with(|_| panic!("on purpose"))));
        assert!(panicked.is_err());
        assert_eq!(lock.with(|value| *value), 1);
    }
}
