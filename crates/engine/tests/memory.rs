//! On a GPU: a run frees its allocations, and a failed allocation leads to a smaller mode or an error. `faults.rs` and
//! `steady.rs` test the CPU.
#![allow(missing_docs)]

use kiln_engine::{DeviceChoice, HostPool, Result, Setup, devices};
use kiln_mempool::Faults;
use kiln_testkit::fixtures;

mod support;

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// The run's pixels.
fn run() -> Result<Vec<u8>> {
    let setup = Setup { device: DeviceChoice::Cuda(0), ..support::cpu() };
    let mut engine = support::try_load(&fixtures("models/sd1"), &setup)?;
    let images = support::try_images(&mut engine, &support::request("a", (64, 64), 3, 1))?;
    Ok(images.into_iter().flat_map(|image| image.rgb).collect())
}

/// Used bytes of the GPU.
fn taken() -> usize {
    devices().cards.first().map_or(0, |gpu| gpu.memory_total - gpu.memory_free)
}

/// Allocation requests of a run that fail, one in each run. All of them together take a minute.
const TRIED: u64 = 40;

/// One test, because faults and counters apply to the whole process.
#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn out_of_memory_is_reported_and_gpu_memory_is_freed() {
    let faults = Faults::count();
    let expected = run().unwrap();
    run().unwrap();
    let requests = faults.seen() / 2;
    drop(faults);
    assert!(requests > 100, "{requests} requests");
    let before = taken();
    for i in 0..TRIED {
        let n = requests * i / TRIED;
        let faults = Faults::fail_once(n);
        let result = run();
        assert!(faults.seen() > n, "request {n} of {requests} was made");
        drop(faults);
        match result {
            Ok(pixels) => assert!(pixels == expected, "request {n} failed, and the image differs"),
            Err(error) => assert!(error.is_out_of_memory(), "request {n} failed: {error}"),
        }
    }
    assert_eq!(run().unwrap(), expected);
    let after = taken();
    assert!(after <= before + (1 << 20), "{before} bytes before, {after} after");
}
