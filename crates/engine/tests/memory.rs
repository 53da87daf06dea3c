//! On a card: what a run takes it gives back, and a run without memory goes on with less or ends with an error. On the
//! processor `faults.rs` and `steady.rs` show that.
#![allow(missing_docs)]

use std::ops::ControlFlow;

use kiln_engine::{DTypeChoice, DeviceChoice, Engine, Event, HostPool, ModelFolder, Request, Result, Setup, devices};
use kiln_mempool::Faults;
use kiln_testkit::{Target, fixtures};

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// The run's pixels.
fn run() -> Result<Vec<u8>> {
    let setup = Setup { device: DeviceChoice::Cuda(0), dtype: DTypeChoice::F32, ..Setup::default() };
    let model = ModelFolder::open(&fixtures("models").join("sd1"))?;
    let (width, height) = (Some(64), Some(64));
    let request = Request { prompt: "a".into(), seed: Some(1), steps: Some(3), width, height, ..Request::default() };
    let job = request.resolve(&model)?;
    let mut engine = Engine::load(model, &setup, &mut |_| ControlFlow::Continue(()))?;
    let mut pixels = Vec::new();
    engine.txt2img(&job, &mut |event| {
        if let Event::Picture(picture) = event {
            pixels.extend_from_slice(&picture.rgb);
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(pixels)
}

/// Bytes of the card that are not free.
fn taken() -> usize {
    devices().cards.first().map_or(0, |card| card.memory_total - card.memory_free)
}

/// Requests of a run that fail, one in each. All of them take a minute.
const TRIED: u64 = 40;

/// One test: faults and counters are the process's.
#[test]
fn memory_that_is_missing_is_told_and_all_of_the_card_s_is_given_back() {
    if Target::from_env().device.is_cpu() {
        eprintln!("no card was asked for: nothing is tested");
        return;
    }
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
