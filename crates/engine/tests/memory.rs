//! On a GPU: a run frees what it allocated, and where an allocation fails it goes on with less or ends with an error. On the
//! CPU `faults.rs` and `steady.rs` show that.
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

/// Bytes of the GPU that are not free.
fn taken() -> usize {
    devices().cards.first().map_or(0, |card| card.memory_total - card.memory_free)
}

/// Requests of a run that fail, one in each. All of them take a minute.
const TRIED: u64 = 40;

/// One test: faults and counters are the process's.
#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn memory_that_is_missing_is_told_and_all_of_the_card_s_is_given_back() {
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
            Ok(pixels) => assert!(pixels == expected, "request {n} failed, and the picture is another one"),
            Err(error) => assert!(error.is_out_of_memory(), "request {n} failed: {error}"),
        }
    }
    assert_eq!(run().unwrap(), expected);
    let after = taken();
    assert!(after <= before + (1 << 20), "{before} bytes before, {after} after");
}
