//! The pool as the global allocator of a program.
#![cfg(unix)]
#![allow(missing_docs)]

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
    forks_do_not_stop();
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
