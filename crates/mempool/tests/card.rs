//! The pools of a GPU's memory. All tests need a GPU and are ignored unless they are asked for (`--ignored`).
#![cfg(feature = "cuda")]
#![allow(missing_docs)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result::mem_get_info};
use kiln_mempool::{DeviceCalls, DevicePool, DevicePoolConfig, Faults, PinnedConfig, PinnedPool, Scratch, rehearse};

const MIB: usize = 1 << 20;

/// A stream of the first GPU, for one test at a time: pools and counters are the process's.
fn gpu() -> (Arc<CudaStream>, MutexGuard<'static, ()>) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    (CudaContext::new(0).unwrap().new_stream().unwrap(), one)
}

fn tensor(stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>, cudarc::driver::DriverError> {
    // SAFETY: nobody reads it.
    unsafe { stream.alloc::<u8>(bytes) }
}

/// Requests, and calls of the driver.
fn since(before: DeviceCalls) -> (u64, u64) {
    let now = DevicePool::calls();
    (now.requests - before.requests, now.driver - before.driver)
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn every_request_is_counted_and_given_back() {
    let (stream, _one) = gpu();
    drop(tensor(&stream, MIB).unwrap()); // whatever the driver makes on its first use
    stream.synchronize().unwrap();
    let free = mem_get_info().unwrap().0;
    let pool = DevicePool::install(0, DevicePoolConfig::default()).unwrap();
    let before = DevicePool::calls();
    let a = tensor(&stream, 3 * MIB).unwrap();
    let b = tensor(&stream, 40 * MIB).unwrap();
    assert_eq!(since(before), (2, 2));
    let with = pool.memory().unwrap();
    assert!(with.used >= 43 * MIB as u64 && with.reserved >= with.used, "{with:?}");
    drop((a, b));
    assert!(pool.trim(0.0).unwrap() >= 43 * MIB as u64);
    assert_eq!((pool.trim(0.0).unwrap(), pool.memory().unwrap().reserved), (0, 0));
    drop(pool);
    assert_eq!(mem_get_info().unwrap().0, free, "the pool is gone, and so is its memory");
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn a_ceiling_is_hard_and_waiting_memory_makes_room() {
    let (stream, _one) = gpu();
    let config = DevicePoolConfig { ceiling: Some(64 * MIB as u64), ..DevicePoolConfig::default() };
    let pool = DevicePool::install(0, config).unwrap();
    let held = tensor(&stream, 20 * MIB).unwrap();
    drop((tensor(&stream, 10 * MIB).unwrap(), tensor(&stream, 30 * MIB).unwrap()));
    // 40 MiB wait in pieces; a larger one is served after a trim.
    let large = tensor(&stream, 42 * MIB).unwrap();
    assert!(tensor(&stream, 4 * MIB).is_err());
    assert!(pool.memory().unwrap().peak_reserved <= 64 * MIB as u64);
    drop((held, large));
    assert!(tensor(&stream, 60 * MIB).is_ok());
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn without_keeping_nothing_waits() {
    let (stream, _one) = gpu();
    let pool = DevicePool::install(0, DevicePoolConfig { keep: false, ceiling: None }).unwrap();
    drop(tensor(&stream, 64 * MIB).unwrap());
    stream.synchronize().unwrap();
    assert_eq!(pool.memory().unwrap().reserved, 0);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn a_request_fails_on_purpose() {
    let (stream, _one) = gpu();
    let faults = Faults::fail_once(1);
    assert!(tensor(&stream, MIB).is_ok() && tensor(&stream, MIB).is_err() && tensor(&stream, MIB).is_ok());
    assert_eq!(faults.seen(), 3);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn a_planned_run_calls_no_driver() {
    let (stream, _one) = gpu();
    let pool = DevicePool::install(0, DevicePoolConfig::default()).unwrap();
    let run = || {
        let a = tensor(&stream, 10 * MIB)?;
        let b = tensor(&stream, 5 * MIB)?;
        drop(a);
        let c = tensor(&stream, 9 * MIB)?;
        drop((b, c));
        Ok::<_, cudarc::driver::DriverError>(())
    };
    let (result, rehearsal) = rehearse(run);
    result.unwrap();
    let scratch = Scratch::new(&stream, rehearsal.plan()).unwrap();
    assert_eq!(scratch.bytes(), 15 * MIB);
    let reserved = pool.memory().unwrap().reserved;
    assert!(reserved <= 32 * MIB as u64, "what the rehearsal left is gone: {reserved} bytes are kept");
    let before = DevicePool::calls();
    for _ in 0..3 {
        let (result, problem) = scratch.record(run);
        result.unwrap();
        assert_eq!(problem, None);
    }
    let lent = scratch.lend(|| [12, 100].map(|size| tensor(&stream, size * MIB).unwrap()));
    assert!(!scratch.is_idle());
    drop(lent);
    assert!(scratch.is_idle());
    assert_eq!(since(before), (11, 2));
    let (result, problem) = scratch.record(|| tensor(&stream, MIB));
    assert!(result.is_err() && problem.is_some_and(|problem| problem.contains("another size")));
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn page_locked_memory_is_copied_to_a_card_and_back() {
    let (stream, _one) = gpu();
    let pool = PinnedPool::new(0, PinnedConfig::with_cap(8 * MIB)).unwrap();
    let mut block = pool.allocate(3 * MIB).unwrap();
    block.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
    let mut on_card = tensor(&stream, block.len()).unwrap();
    stream.memcpy_htod(&*block, &mut on_card).unwrap();
    let mut back = vec![0u8; block.len()];
    stream.memcpy_dtoh(&on_card, &mut back).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(&*block, &back[..]);
    assert!(pool.allocate(6 * MIB).unwrap_err().is_out_of_memory());
}
