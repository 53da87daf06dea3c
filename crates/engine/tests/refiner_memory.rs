//! The memory of runs with a refiner: the plan holds, and in modes that keep one network at a time the first model's weights do
//! not stay with the refiner's.
#![allow(missing_docs)]

use std::ops::ControlFlow;

use kiln_engine::{
    Engine, Event, ExecutionTarget, HostPool, MemoryOptions, Mode, ModeChoice, ModelFolder, Planner, Request, Rule,
    Setup, Stage, Workload,
};
use kiln_testkit::repository;

mod support;

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// The maximum relative error of used bytes, as for runs of one model.
const IN_USE: f64 = 0.1;

/// The peak of used bytes of a run, and what is used while the refiner runs.
fn measured(model: &ModelFolder, setup: &Setup, request: &Request) -> [usize; 2] {
    HostPool::trim(0.0);
    HostPool::reset_peaks();
    let job = request.resolve(model).unwrap();
    let mut engine = Engine::load(model.clone(), setup, &mut |_| ControlFlow::Continue(())).unwrap();
    let (mut refines, mut used) = (false, 0);
    engine
        .txt2img(&job, &mut |event| {
            match event {
                Event::Begin(stage) => refines = stage == Stage::Refine,
                Event::Step { .. } if refines => used = used.max(HostPool::statistics().used),
                _ => {}
            }
            Ok(ControlFlow::Continue(()))
        })
        .unwrap();
    [HostPool::statistics().peak_used, used]
}

/// One test, because the counters apply to the whole process.
#[test]
fn weights_of_one_model_leave_for_the_other() {
    let path = repository().join("models/emoji");
    let model = ModelFolder::open(&path).unwrap();
    let planner = Planner::new(&model, None).unwrap().with_refiner(Some(&model)).unwrap();
    let request = Request {
        refiner: Some(path),
        refiner_switch: Some(0.5),
        rule: Some(Rule::Automatic1111),
        ..support::request("a red apple", (128, 128), 4, 1)
    };
    let alone = Request { refiner: None, refiner_switch: None, ..request.clone() };
    for (choice, mode) in
        [(ModeChoice::Full, Mode::Full), (ModeChoice::Medvram, Mode::Medvram), (ModeChoice::Lowvram, Mode::LOWVRAM)]
    {
        let setup = Setup { memory: MemoryOptions { mode: choice, ..MemoryOptions::default() }, ..support::cpu() };
        let on = ExecutionTarget::of(&setup).0;
        let plan =
            |request: &Request| planner.plan(mode, &Workload::of(&request.resolve(&model).unwrap()), on, None).unwrap();
        let with = plan(&request);
        let [peak, refining] = measured(&model, &setup, &request);
        let in_use = with.peak() - with.largest().waiting;
        println!("{mode}: {in_use} planned, {peak} used, {refining} while refining");
        assert!((in_use as f64 / peak as f64 - 1.0).abs() <= IN_USE, "{mode}: {in_use} planned, {peak} used");
        let unet = planner.plan(Mode::Medvram, &Workload::of(&alone.resolve(&model).unwrap()), on, None).unwrap();
        let unet = unet.stage(Stage::Denoise).unwrap().weights;
        let stage = with.stage(Stage::Refine).unwrap();
        // Full keeps both, medvram one of them, lowvram the ring alone.
        let most = match mode {
            Mode::Full => stage.total(),
            Mode::Medvram => unet + stage.total() - stage.weights,
            Mode::Lowvram { .. } => unet / 2 + stage.total() - stage.weights - stage.ring,
        };
        assert!(refining > 0 && refining <= most + most / 10, "{mode}: {refining} while refining, at most {most}");
        if mode == Mode::Full {
            assert!(refining > 2 * unet, "{refining} bytes with two networks of {unet}");
        }
        let [without, _] = measured(&model, &setup, &alone);
        let more = if mode == Mode::Full { unet + unet / 10 } else { unet / 10 };
        assert!(peak <= without + more, "{mode}: {peak} with a refiner, {without} without");
    }
}
