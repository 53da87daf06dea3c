//! The pool as the global allocator of a program.
#![cfg(unix)]
#![allow(missing_docs)]

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};

use kiln_mempool::{HostPool, PageFaults, ProcessMemory};

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// One test, since the statistics belong to the process.
#[test]
fn large_blocks_are_reused() {
    // Freed memory serves the next request, without page faults.
    let run = || std::hint::black_box(vec![1u8; 64 << 20]).len();
    run();
    let (before, faults) = (HostPool::statistics(), PageFaults::now());
    for _ in 0..10 {
        run();
    }
    let after = HostPool::statistics();
    assert!(after.allocations - before.allocations >= 10 && after.reused - before.reused >= 10);
    assert_eq!((after.system_calls, after.reserved), (before.system_calls, before.reserved));
    if let (Some(before), Some(after)) = (faults, PageFaults::now()) {
        // The pages of one block alone are 16,384.
        assert!(after.minor - before.minor < 1000, "{} faults", after.minor - before.minor);
    }

    // A trim releases it.
    let resident = ProcessMemory::now();
    assert!(HostPool::statistics().unused() >= 64 << 20);
    assert_eq!(HostPool::trim(1.0), 0);
    if cfg!(target_os = "linux") {
        assert!(HostPool::trim(0.0) >= 64 << 20);
        assert_eq!(HostPool::statistics().unused(), 0);
    }
    if let (Some(before), Some(after)) = (resident, ProcessMemory::now()) {
        assert!(after.resident + (60 << 20) < before.resident, "{before:?}, {after:?}");
    }

    ceilings_are_kept();
    files_become_vectors_without_a_copy();
    forks_do_not_stop();
}

/// A vector's memory is the file's until it is written to, and fresh memory after it is freed.
fn files_become_vectors_without_a_copy() {
    const PAGE: usize = 4096;
    let (numbers, count) = (40_000, 40_000 * size_of::<u16>());
    let bytes: Vec<u8> = (0..PAGE + count).map(|i| (i % 251) as u8).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let expected: Vec<u16> = bytes[PAGE..].chunks_exact(2).map(|pair| u16::from_ne_bytes([pair[0], pair[1]])).collect();
    let used = HostPool::statistics().used;
    for _ in 0..3 {
        let seen = |seen: &[u8]| seen == &bytes[PAGE..];
        let mut mapped = HostPool::map_file::<u16>(&file, PAGE as u64, numbers, seen).unwrap();
        assert!(mapped == expected && HostPool::statistics().used > used);
        mapped[5] = 7;
        mapped.push(9); // moves it
        assert!(mapped[5] == 7 && mapped[numbers] == 9 && mapped[6..numbers] == expected[6..]);
        let again = HostPool::map_file::<u16>(&file, PAGE as u64, numbers, |_| true).unwrap();
        assert_eq!(again, expected, "the file has not changed");
        drop(again);
        drop(mapped);
        assert!(HostPool::map_file::<u16>(&file, PAGE as u64, numbers, |_| false).is_none());
        assert_eq!(HostPool::statistics().used, used);
        assert!(vec![0u8; count + PAGE].iter().all(|byte| *byte == 0));
    }
    for (offset, numbers) in [(1, numbers), (PAGE as u64, numbers + 1), (u64::MAX - 4095, numbers), (0, 10)] {
        assert!(HostPool::map_file::<u16>(&file, offset, numbers, |_| true).is_none(), "{offset}, {numbers}");
    }
    assert!(HostPool::map_file::<f32>(&file, 0, usize::MAX / 2, |_| true).is_none());
    assert_eq!(HostPool::statistics().used, used);
}

/// Fallible requests fail at the limit, and unused memory is released for them.
fn ceilings_are_kept() {
    let held = HostPool::vector::<u8>(32 << 20).unwrap();
    drop(std::hint::black_box(vec![1u8; 48 << 20]));
    let before = HostPool::statistics();
    HostPool::set_ceiling(Some(before.used + (64 << 20)));
    assert_eq!(HostPool::ceiling(), Some(before.used + (64 << 20)));
    let error = HostPool::vector::<u32>(17 << 20).unwrap_err();
    assert!(
        error.is_out_of_memory() && error.to_string().starts_with("out of host memory: cannot allocate 68.0 MiB"),
        "{error}"
    );
    assert_eq!(HostPool::statistics(), before, "a refused request changes nothing");
    // 48 MiB are unused, too few for this request, and with it the pool would reserve more than its limit.
    let large = HostPool::vector::<u32>(15 << 20).unwrap();
    if cfg!(target_os = "linux") {
        assert!(HostPool::statistics().reserved <= before.used + (64 << 20));
    }
    assert!(HostPool::check(5 << 20).is_err() && HostPool::check(3 << 20).is_ok());
    HostPool::set_ceiling(None);
    assert!(HostPool::check(5 << 20).is_ok());
    assert!(HostPool::vector::<u64>(usize::MAX / 4).unwrap_err().is_out_of_memory());
    drop((held, large));
}

/// A child has the same pool as its parent, whatever other threads did during the fork.
fn forks_do_not_stop() {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::black_box(Vec::<u8>::with_capacity(1 << 20));
                }
            });
        }
        for _ in 0..50 {
            // SAFETY: the child allocates, which the pool and the C library allow after a fork, and exits at once. The
            // alarm ends it if it hangs.
            let status = unsafe {
                match libc::fork() {
                    0 => {
                        libc::alarm(20);
                        let block = std::hint::black_box(vec![7u8; 1 << 20]);
                        libc::_exit(i32::from(block[1 << 19] != 7));
                    }
                    child => {
                        let mut status = -1;
                        libc::waitpid(child, &mut status, 0);
                        status
                    }
                }
            };
            assert_eq!(status, 0);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
