use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::Faults;

// Requests are counted for the whole process, so every test that makes some holds a `Faults`.

/// Ordinary memory in place of the driver's.
struct Plain {
    locked: Arc<AtomicUsize>,
}

impl Source for Plain {
    fn lock(&self, bytes: usize) -> Result<Chunk> {
        self.locked.fetch_add(bytes, Ordering::SeqCst);
        let start = Box::leak(vec![0u8; bytes].into_boxed_slice()).as_mut_ptr();
        let locked = self.locked.clone();
        let release = move |start, len| {
            locked.fetch_sub(len, Ordering::SeqCst);
            // SAFETY: the pointer and the length are those of the box above.
            #[allow(unsafe_code)]
            drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(start, len)) });
        };
        Ok(Chunk { start, len: bytes, release: Box::new(release) })
    }
}

fn pool(cap: usize) -> (PinnedPool, Arc<AtomicUsize>) {
    let locked = Arc::new(AtomicUsize::new(0));
    (PinnedPool::over(Box::new(Plain { locked: locked.clone() }), cap), locked)
}

#[test]
fn blocks_do_not_overlap() {
    let _alone = Faults::count();
    let (pool, _) = pool(64 << 20);
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            let pool = pool.clone();
            scope.spawn(move || {
                for i in 0..50 {
                    let (mut a, mut b) = (pool.allocate(1000 * (i + 1)).unwrap(), pool.allocate(3 << 20).unwrap());
                    a.fill(thread);
                    b.fill(thread + 100);
                    assert!(a.iter().all(|byte| *byte == thread) && b.iter().all(|byte| *byte == thread + 100));
                    assert_eq!((a.len(), b.len()), (1000 * (i + 1), 3 << 20));
                }
            });
        }
    });
    let statistics = pool.statistics();
    assert_eq!((statistics.used, statistics.allocations), (0, 400));
    assert!(statistics.peak_used <= statistics.peak_reserved && statistics.peak_reserved <= 64 << 20);
}

#[test]
fn the_limit_is_never_exceeded_and_free_memory_is_reused() {
    let _alone = Faults::count();
    let (pool, locked) = pool(10 << 20);
    let first = pool.allocate(6 << 20).unwrap();
    let error = pool.allocate(6 << 20).unwrap_err();
    assert!(error.is_out_of_memory() && error.to_string().contains("the limit is 10.0 MiB"), "{error}");
    drop(first);
    let again = pool.allocate(5 << 20).unwrap(); // the same memory
    assert_eq!((pool.statistics().reserved, pool.statistics().system_calls), (6 << 20, 1));
    drop(again);
    // A larger block does not fit next to the free chunk, which is released for it.
    let large = pool.allocate(9 << 20).unwrap();
    assert_eq!(locked.load(Ordering::SeqCst), 10 << 20);
    assert_eq!(pool.trim(), 0, "a chunk in use stays");
    drop(large);
    assert_eq!((pool.trim(), locked.load(Ordering::SeqCst), pool.statistics().reserved), (10 << 20, 0, 0));
}

#[test]
fn a_block_outlives_its_pool() {
    let _alone = Faults::count();
    let (pool, locked) = pool(4 << 20);
    let mut block = pool.allocate(100).unwrap();
    drop(pool);
    block.fill(7);
    assert_eq!(block[99], 7);
    drop(block);
    assert_eq!(locked.load(Ordering::SeqCst), 0);
}

#[test]
fn a_test_can_make_a_request_fail() {
    let (pool, _) = pool(4 << 20);
    let faults = Faults::fail_once(1);
    drop(pool.allocate(100).unwrap());
    assert!(pool.allocate(100).unwrap_err().is_out_of_memory());
    drop(pool.allocate(100).unwrap());
    assert_eq!(faults.seen(), 3);
    drop(faults);
    let _faults = Faults::fail_from(0);
    assert!(pool.allocate(100).is_err() && pool.allocate(100).is_err());
}

#[test]
fn without_cuda_there_is_an_error() {
    if cfg!(not(feature = "cuda")) {
        assert!(matches!(PinnedPool::new(0, PinnedConfig::with_cap(1)), Err(Error::NoCuda)));
    }
}
