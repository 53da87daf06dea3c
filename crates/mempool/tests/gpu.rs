//! The pools of GPU memory, on a GPU (`KILN_TEST_DEVICE=cuda`). All tests are ignored unless they are asked for (`--ignored`).
#![cfg(feature = "cuda")]
#![allow(missing_docs)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::{CudaContext, CudaSlice, CudaStream, result::mem_get_info};
use kiln_mempool::{DeviceCalls, DevicePool, DevicePoolConfig, Faults, PinnedConfig, PinnedPool, Scratch};
use kiln_mempool::{manage_stream, trace_allocations};

const MIB: usize = 1 << 20;

/// A stream of the first GPU that is not Kiln's, and a lock: pools and counters belong to the process.
fn foreign_stream() -> (Arc<CudaStream>, MutexGuard<'static, ()>) {
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    (CudaContext::new(0).unwrap().new_stream().unwrap(), one)
}

/// A managed stream. `None` as well where this build leaves allocations to the driver.
fn stream() -> Option<(Arc<CudaStream>, MutexGuard<'static, ()>)> {
    let found = Some(foreign_stream()).filter(|_| DevicePool::intercepts());
    found.inspect(|(stream, _)| manage_stream(stream))
}

/// A pool that serves the stream.
fn pool_of(stream: &Arc<CudaStream>, config: DevicePoolConfig) -> DevicePool {
    let pool = DevicePool::install(0, config).unwrap();
    pool.serve(stream);
    pool
}

fn tensor(stream: &Arc<CudaStream>, bytes: usize) -> Result<CudaSlice<u8>, cudarc::driver::DriverError> {
    // SAFETY: no test reads it before writing it.
    unsafe { stream.alloc::<u8>(bytes) }
}

/// Allocations, and calls of the driver.
fn since(before: DeviceCalls) -> (u64, u64) {
    let now = DevicePool::calls();
    (now.requests - before.requests, now.driver - before.driver)
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn every_allocation_is_counted_and_released() {
    let Some((stream, _one)) = stream() else { return };
    drop(tensor(&stream, MIB).unwrap()); // what the driver allocates on its first use
    stream.synchronize().unwrap();
    let free = mem_get_info().unwrap().0;
    let pool = pool_of(&stream, DevicePoolConfig::default());
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
    assert_eq!(mem_get_info().unwrap().0, free, "the memory of a dropped pool is released");
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn a_ceiling_is_never_exceeded_and_unused_memory_is_released_for_it() {
    let Some((stream, _one)) = stream() else { return };
    let config = DevicePoolConfig { ceiling: Some(64 * MIB as u64), ..DevicePoolConfig::default() };
    let pool = pool_of(&stream, config);
    let held = tensor(&stream, 20 * MIB).unwrap();
    drop((tensor(&stream, 10 * MIB).unwrap(), tensor(&stream, 30 * MIB).unwrap()));
    // 40 MiB are unused, in two blocks. A larger allocation succeeds after a trim.
    let large = tensor(&stream, 42 * MIB).unwrap();
    assert!(tensor(&stream, 4 * MIB).is_err());
    assert!(pool.memory().unwrap().peak_reserved <= 64 * MIB as u64);
    drop((held, large));
    assert!(tensor(&stream, 60 * MIB).is_ok());
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn without_keep_no_memory_is_reserved() {
    let Some((stream, _one)) = stream() else { return };
    let pool = pool_of(&stream, DevicePoolConfig { keep: false, ceiling: None });
    drop(tensor(&stream, 64 * MIB).unwrap());
    stream.synchronize().unwrap();
    assert_eq!(pool.memory().unwrap().reserved, 0);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn an_allocation_can_be_made_to_fail() {
    let Some((stream, _one)) = stream() else { return };
    let faults = Faults::fail_once(1);
    assert!(tensor(&stream, MIB).is_ok() && tensor(&stream, MIB).is_err() && tensor(&stream, MIB).is_ok());
    assert_eq!(faults.seen(), 3);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn a_planned_run_makes_no_driver_call() {
    let Some((stream, _one)) = stream() else { return };
    let pool = pool_of(&stream, DevicePoolConfig::default());
    let run = || {
        let a = tensor(&stream, 10 * MIB)?;
        let b = tensor(&stream, 5 * MIB)?;
        drop(a);
        let c = tensor(&stream, 9 * MIB)?;
        drop((b, c));
        Ok::<_, cudarc::driver::DriverError>(())
    };
    let (result, recorded) = trace_allocations(run);
    result.unwrap();
    let scratch = Scratch::new(&stream, recorded.plan()).unwrap();
    assert_eq!(scratch.bytes(), 15 * MIB);
    let reserved = pool.memory().unwrap().reserved;
    assert!(reserved <= 32 * MIB as u64, "the memory of the first run is released: {reserved} bytes are reserved");
    let before = DevicePool::calls();
    for _ in 0..3 {
        let (result, problem) = scratch.record(run);
        result.unwrap();
        assert_eq!(problem, None);
    }
    let lent = scratch.with_arena(|| [12, 100].map(|size| tensor(&stream, size * MIB).unwrap()));
    assert!(!scratch.is_idle());
    drop(lent);
    assert!(scratch.is_idle());
    assert_eq!(since(before), (11, 2));
    let (result, problem) = scratch.record(|| tensor(&stream, MIB));
    assert!(result.is_err() && problem.is_some_and(|problem| problem.contains("another size")));
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn a_stream_allocates_from_its_own_pool_which_memory_in_use_keeps() {
    let Some((stream, _one)) = stream() else { return };
    let other = stream.context().new_stream().unwrap();
    manage_stream(&other);
    let ceiling = |mib: usize| DevicePoolConfig { ceiling: Some((mib * MIB) as u64), keep: true };
    let (pool, second) = (pool_of(&stream, ceiling(64)), pool_of(&other, ceiling(8)));
    let (large, small) = (tensor(&stream, 40 * MIB).unwrap(), tensor(&other, 6 * MIB).unwrap());
    assert!(tensor(&other, 4 * MIB).is_err(), "over its own ceiling");
    assert!(pool.used().unwrap() >= 40 * MIB as u64 && second.used().unwrap() < 8 * MIB as u64);
    // Its memory is freed after it, and the stream serves on.
    drop(second);
    let later = tensor(&other, 12 * MIB).unwrap();
    drop((small, later));
    other.synchronize().unwrap();
    drop((pool, large));
    stream.synchronize().unwrap();
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn pinned_memory_is_copied_to_a_gpu_and_back() {
    let (stream, _one) = foreign_stream();
    let pool = PinnedPool::new(0, PinnedConfig::with_cap(8 * MIB)).unwrap();
    let mut block = pool.allocate(3 * MIB).unwrap();
    block.iter_mut().enumerate().for_each(|(i, byte)| *byte = i as u8);
    let mut on_gpu = tensor(&stream, block.len()).unwrap();
    stream.memcpy_htod(&*block, &mut on_gpu).unwrap();
    let mut back = vec![0u8; block.len()];
    stream.memcpy_dtoh(&on_gpu, &mut back).unwrap();
    stream.synchronize().unwrap();
    assert_eq!(&*block, &back[..]);
    assert!(pool.allocate(6 * MIB).unwrap_err().is_out_of_memory());
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn allocations_of_other_streams_are_left_to_the_driver() {
    let (stream, _one) = foreign_stream();
    let pool = DevicePool::install(0, DevicePoolConfig { ceiling: Some(64 * MIB as u64), keep: true }).unwrap();
    let _faults = Faults::fail_from(0);
    let before = DevicePool::calls();
    // Above the ceiling, and while every allocation of Kiln fails.
    let (foreign, recorded) = trace_allocations(|| tensor(&stream, 100 * MIB).unwrap());
    drop(tensor(&stream, MIB).unwrap());
    assert_eq!(recorded.plan().requests(), 0);
    if DevicePool::intercepts() {
        assert_eq!(pool.used().unwrap(), 0);
        manage_stream(&stream);
        pool.serve(&stream);
        assert!(tensor(&stream, MIB).is_err());
        assert_eq!(since(before), (1, 0));
    } else {
        assert!(pool.used().unwrap() >= 100 * MIB as u64, "without interposition the default pool is shared");
        assert_eq!(since(before), (0, 0));
    }
    drop(foreign);
}

/// In builds that leave allocations to the driver.
#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn the_default_pool_keeps_memory_until_the_last_value_is_dropped() {
    use cudarc::driver::{result::mem_pool, sys};
    let (stream, _one) = foreign_stream();
    let threshold = || {
        let (mut number, release) = (0u64, sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
        // SAFETY: the device is valid, and so is its pool; the attribute is a number of 64 bits, which lives through the call.
        unsafe {
            let pool = cudarc::driver::result::device::get_default_mem_pool(stream.context().cu_device()).unwrap();
            mem_pool::get_attribute(pool, release, (&raw mut number).cast()).unwrap();
        }
        number
    };
    let before = threshold();
    let [first, second] = [(); 2].map(|()| DevicePool::install(0, DevicePoolConfig::default()).unwrap());
    let kept = if DevicePool::intercepts() { before } else { u64::MAX };
    assert_eq!(threshold(), kept);
    drop(first);
    assert_eq!(threshold(), kept);
    drop(second);
    assert_eq!(threshold(), before);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn the_current_pool_of_the_device_stays() {
    use cudarc::driver::result::device;
    let (stream, _one) = foreign_stream();
    let number = stream.context().cu_device();
    // SAFETY: the device is valid.
    let current = || unsafe { device::get_mem_pool(number) }.unwrap();
    let before = current();
    let pool = DevicePool::install(0, DevicePoolConfig::default()).unwrap();
    assert_eq!(current(), before);
    drop(pool);
    assert_eq!(current(), before);
}
