//! After the first step, a step on the CPU requests no memory from the system.
#![allow(missing_docs)]

use std::ops::ControlFlow;

use kiln_bench::{BenchPlan, BenchStage};
use kiln_engine::{Architecture, DTypeChoice, DeviceChoice, HostPool, Preset, Setup};

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// Page faults that a step may have: a thread that uses more of its stack than before. The tensors of a step have ten
/// thousand pages.
const NOISE: u64 = 100;

/// One test, because the counters apply to the whole process.
#[test]
fn a_step_requests_no_memory_from_the_system() {
    for dtype in [DTypeChoice::F32, DTypeChoice::Bf16] {
        let setup = Setup { device: DeviceChoice::Cpu, dtype, ..Setup::default() };
        let stages = vec![BenchStage::Step, BenchStage::Vae];
        let plan = BenchPlan { size: Some((128, 128)), stages, runs: 3, warmup: 2, setup, ..BenchPlan::default() };
        let model = Architecture::preset(Preset::Emoji).unwrap();
        let report = plan.run(&[model], &mut |_| ControlFlow::Continue(())).unwrap();
        for stage in &report.models[0].stages {
            assert_eq!(stage.pool_calls, [0; 3], "{dtype:?} {:?}", stage.stage);
            assert!(
                stage.faults.iter().all(|&faults| faults <= NOISE),
                "{dtype:?} {:?}: {:?}",
                stage.stage,
                stage.faults
            );
        }
    }
    let pool = HostPool::statistics();
    assert!(pool.allocations > 1000 && pool.reuse_rate() > 0.8, "{pool:?}");
    assert!(pool.peak_reserved as f64 <= 1.25 * pool.peak_used as f64, "{pool:?}");
}
