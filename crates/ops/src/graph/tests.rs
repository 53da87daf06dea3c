use std::sync::atomic::{AtomicUsize, Ordering};

use candle_core::{DType, Device, Tensor};
use kiln_mempool::DevicePool;

use super::*;
use crate::test_support::{TARGET, assert_close, exact, random};
use crate::{Activation, Error, activation};

#[test]
fn the_cpu_cannot_record() {
    let x = Tensor::ones((2, 3), DType::F32, &Device::Cpu).unwrap();
    let run = || -> crate::Result<()> { activation(&x, Activation::Relu, None).map(drop) };
    let (result, prepared) = prepare(&Device::Cpu, run).unwrap();
    result.unwrap();
    assert!(!is_recordable(&Device::Cpu));
    assert!(Graph::record(&Device::Cpu, &prepared, &[], run).is_err());
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn a_captured_run_reads_its_inputs_again() {
    let device = &TARGET.0;
    let (x, y) = (random(&[3, 40]), random(&[3, 40]));
    // Two operators, so that memory is allocated and freed in between.
    let run = || -> crate::Result<()> {
        let between = activation(&x, Activation::Relu, None)?;
        activation(&between, Activation::Silu, Some(&y)).map(drop)
    };
    let (result, prepared) = prepare(device, run).unwrap();
    result.unwrap();
    let mut graph = Graph::record(device, &prepared, &[], run).unwrap();
    assert!(!DevicePool::intercepts() || graph.bytes() >= 3 * 40 * x.dtype().size_in_bytes());
    for _ in 0..3 {
        let input = random(&[3, 40]);
        x.slice_set(&input, 0, 0).unwrap();
        let before = DevicePool::calls();
        graph.replay().unwrap();
        assert_eq!(DevicePool::calls(), before, "a replay allocates nothing");
        let expected = exact(&input).relu().unwrap().silu().unwrap();
        assert_close(&y, &expected, 2e-6);
    }
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn a_run_that_fails_during_capture_leaves_the_gpu_usable() {
    let device = &TARGET.0;
    let x = random(&[4]);
    let fails = || -> crate::Result<()> {
        activation(&x, Activation::Silu, None)?;
        Err(Error::Driver("stop".into()))
    };
    let record = |run: &(dyn Fn() -> crate::Result<()> + Sync)| {
        Graph::record(device, &prepare(device, || ()).unwrap().1, &[], run)
    };
    assert!(record(&fails).is_err());
    let read = || -> crate::Result<()> {
        x.to_dtype(DType::F32)?.to_vec1::<f32>()?;
        Ok(())
    };
    assert!(record(&read).is_err(), "memory was read during the capture");
    let allocates = || -> crate::Result<()> { activation(&x, Activation::Silu, None).map(drop) };
    if DevicePool::intercepts() {
        let problem = record(&allocates).map(drop).unwrap_err().to_string();
        assert!(problem.contains("was not in the first run"), "{problem}");
    }
    assert_close(&activation(&x, Activation::Relu, None).unwrap(), &exact(&x).relu().unwrap(), 0.0);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn results_are_the_same_as_without_capture() {
    let device = &TARGET.0;
    let x = random(&[2, 5, 7]);
    let eager = activation(&x, Activation::GeluErf, None).unwrap();
    let out = Tensor::zeros_like(&x).unwrap();
    let run = || -> crate::Result<()> { activation(&x, Activation::GeluErf, Some(&out)).map(drop) };
    let (result, prepared) = prepare(device, run).unwrap();
    result.unwrap();
    let mut graph = Graph::record(device, &prepared, &[], run).unwrap();
    out.zero_set().unwrap(); // `prepare` has written the result already
    graph.replay().unwrap();
    assert_close(&out, &exact(&eager), 0.0);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn a_replay_is_refused_while_its_memory_is_used() {
    let device = &TARGET.0;
    if !DevicePool::intercepts() {
        return;
    }
    let (x, y) = (random(&[64, 40]), random(&[64, 40]));
    let run = || -> crate::Result<()> {
        let between = activation(&x, Activation::Relu, None)?;
        activation(&between, Activation::Silu, Some(&y)).map(drop)
    };
    let (result, prepared) = prepare(device, run).unwrap();
    result.unwrap();
    let mut graph = Graph::record(device, &prepared, &[], run).unwrap();
    graph.replay().unwrap();
    let lent = graph.with_arena(|| activation(&x, Activation::Relu, None)).unwrap();
    let problem = graph.replay().unwrap_err().to_string();
    assert!(problem.contains("used by another stage"), "{problem}");
    assert_close(&lent, &exact(&x).relu().unwrap(), 0.0);
    drop(lent);
    graph.replay().unwrap();
    assert_close(&y, &exact(&x).relu().unwrap().silu().unwrap(), 2e-6);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn runs_share_a_block() {
    let device = &TARGET.0;
    if !DevicePool::intercepts() {
        return;
    }
    let sizes = [256, 64, 512];
    let tensors = sizes.map(|rows| (random(&[rows, 40]), random(&[rows, 40])));
    let run = |i: usize| -> crate::Result<()> {
        let (x, y) = &tensors[i];
        let between = activation(x, Activation::Relu, None)?;
        activation(&between, Activation::Silu, Some(y)).map(drop)
    };
    let prepared = [0, 1, 2].map(|i| {
        let (result, prepared) = prepare(device, || run(i)).unwrap();
        result.unwrap();
        prepared
    });
    let mut large = Graph::record(device, &prepared[0], &[], || run(0)).unwrap();
    assert!(large.has_memory_for(&prepared[1]) && !large.has_memory_for(&prepared[2]));
    let before = DevicePool::calls().driver;
    let mut small = Graph::record(device, &prepared[1], &[&large], || run(1)).unwrap();
    assert_eq!(DevicePool::calls().driver, before, "the block is there");
    for (x, y) in &tensors {
        x.slice_set(&random(x.dims()), 0, 0).unwrap();
        y.zero_set().unwrap();
    }
    for graph in [&mut large, &mut small] {
        graph.replay().unwrap();
    }
    for (x, y) in &tensors[..2] {
        assert_close(y, &exact(x).relu().unwrap().silu().unwrap(), 2e-6);
    }
    {
        let _ended = large; // the block stays
    }
    small.replay().unwrap();
    assert_close(&tensors[1].1, &exact(&tensors[1].0).relu().unwrap().silu().unwrap(), 2e-6);
}

/// SiLU and its operand as it is, with the number of its runs.
fn silu_counted(runs: &AtomicUsize) -> impl Fn(&Tensor) -> crate::Result<Vec<Tensor>> + Sync {
    |x| {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok(vec![activation(x, Activation::Silu, None)?, x.clone()])
    }
}

#[test]
fn calls_on_the_cpu_run_each_time() {
    let (calls, runs) = (RecordedCalls::default(), AtomicUsize::new(0));
    let x = Tensor::new(&[[1f32, -2.0]], &Device::Cpu).unwrap();
    for _ in 0..4 {
        let results = calls.run(0, &x, silu_counted(&runs)).unwrap();
        assert_eq!(results[1].to_vec2::<f32>().unwrap(), [[1.0, -2.0]]);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 4);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn calls_are_replayed_by_key_and_shape() {
    let (calls, runs) = (RecordedCalls::default(), AtomicUsize::new(0));
    let called = |key: usize, rows: usize| {
        let x = random(&[rows, 40]);
        let results = calls.run(key, &x, silu_counted(&runs)).unwrap();
        assert_close(&results[0], &exact(&activation(&x, Activation::Silu, None).unwrap()), 0.0);
        assert_close(&results[1], &exact(&x), 0.0);
        runs.swap(0, Ordering::SeqCst)
    };
    assert_eq!([0; 5].map(|_| called(0, 3)), [1, 1, 1, 0, 0]);
    assert_eq!([0; 4].map(|_| called(1, 3)), [1, 1, 1, 0], "another key");
    assert_eq!([0; 4].map(|_| called(0, 64)), [1, 1, 1, 0], "another shape in a larger block");
    assert_eq!([called(0, 3), called(1, 3)], [0, 0]);
    for rows in 4..6 {
        called(0, rows);
    }
    assert_eq!([called(0, 64), called(1, 3)], [1, 0], "the oldest of five has gone");
    calls.clear();
    assert_eq!(called(1, 3), 1);
    let large = 1 << 18; // of 40 channels
    assert_eq!([0; 4].map(|_| called(0, large)), [1; 4]);
}

#[test]
#[ignore = "needs a GPU: KILN_TEST_DEVICE=cuda"]
fn calls_that_cannot_be_recorded_run_each_time() {
    let (calls, runs) = (RecordedCalls::default(), AtomicUsize::new(0));
    let reads = |x: &Tensor| -> crate::Result<Vec<Tensor>> {
        runs.fetch_add(1, Ordering::SeqCst);
        x.to_dtype(DType::F32)?.to_vec2::<f32>()?; // which a capture refuses
        Ok(vec![x.clone()])
    };
    for _ in 0..5 {
        let x = random(&[3, 40]);
        assert_close(&calls.run(0, &x, reads).unwrap()[0], &exact(&x), 0.0);
    }
    assert_eq!(runs.load(Ordering::SeqCst), 6, "the third call runs once for the capture and once without");
    let fails = |_: &Tensor| -> crate::Result<Vec<Tensor>> { Err(Error::Driver("stop".into())) };
    assert!(calls.run(0, &random(&[3, 40]), fails).is_err());
    let x = random(&[3, 40]);
    assert_close(&calls.run(0, &x, reads).unwrap()[0], &exact(&x), 0.0);
}
