//! Plans compared with whole runs on the CPU in every mode.

use std::ops::ControlFlow;

use kiln_engine::{
    ControlUse, DTypeChoice, DeviceChoice, Engine, ExecutionTarget, HostPool, MemoryOptions, Mode, ModeChoice,
    ModelFolder, Planner, Request, Setup, Workload, control_configs,
};
use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_testkit::repository;

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// The maximum relative error of used bytes.
const IN_USE: f64 = 0.1;
/// The same for reserved bytes: fragmentation depends on the order of the threads' requests. For a model with a few MiB
/// its fraction is larger than for a large model.
const KEPT: f64 = 0.15;
/// The same with slabs of all sizes that are allocated and freed between tensors, and with two passes, whose tensors have
/// different sizes.
const STREAMING: f64 = 0.35;

/// The peak used and reserved bytes of the host pool during a run.
fn measured(model: &ModelFolder, setup: &Setup, request: &Request) -> [usize; 2] {
    HostPool::trim(0.0);
    HostPool::reset_peaks();
    let job = request.resolve(model).unwrap();
    let mut engine = Engine::load(model.clone(), setup, &mut |_| ControlFlow::Continue(())).unwrap();
    engine.txt2img(&job, &mut |_| Ok(ControlFlow::Continue(()))).unwrap();
    let after = HostPool::statistics();
    [after.peak_used, after.peak_reserved]
}

/// The maximum relative error of used bytes with control networks whose weights stay; two streams at once vary more.
const CONTROLLED: f64 = 0.05;

/// Plans with a ControlNet, which runs in every step, in the modes that keep weights and in the one that streams them.
fn plans_with_controls_equal_the_memory_of_runs(model: &ModelFolder) {
    let folder = tempfile::tempdir().unwrap();
    let image = Rgb8Image::filled(256, 256, [255; 3]).unwrap();
    std::fs::write(folder.path().join("control.png"), encode(&image, StillFormat::Png).unwrap()).unwrap();
    let net = repository().join("models/emoji-controlnet-edges");
    let mut planner = Planner::new(model, None).unwrap();
    planner.set_controls(&control_configs(model, [net.as_path()]).unwrap());
    for (choice, mode) in
        [(ModeChoice::Full, Mode::Full), (ModeChoice::Medvram, Mode::Medvram), (ModeChoice::Lowvram, Mode::LOWVRAM)]
    {
        let memory = MemoryOptions { mode: choice, ..MemoryOptions::default() };
        let setup = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, memory, ..Setup::default() };
        let control = ControlUse { image: Some(folder.path().join("control.png")), ..ControlUse::new(&net) };
        let request = Request {
            prompt: "a red apple".into(),
            width: Some(256),
            height: Some(256),
            steps: Some(2),
            seed: Some(1),
            batch_size: Some(2),
            controls: vec![control],
            ..Request::default()
        };
        let work = Workload::of(&request.resolve(model).unwrap());
        let plan = planner.plan(mode, &work, ExecutionTarget::of(&setup).0, None).unwrap();
        let [used, _] = measured(model, &setup, &request);
        let planned = plan.peak() - plan.largest().waiting;
        let ratio = planned as f64 / used as f64;
        println!("{mode} with a ControlNet: {planned} planned, {used} in use: {ratio:.3}");
        let bound = if mode == Mode::LOWVRAM { KEPT } else { CONTROLLED };
        assert!((ratio - 1.0).abs() <= bound, "{mode} with a ControlNet: {planned} planned, {used} in use");
    }
}

/// One test, because the counters apply to the whole process.
#[test]
fn plans_equal_the_memory_of_runs() {
    let model = ModelFolder::open(&repository().join("models/emoji")).unwrap();
    let planner = Planner::new(&model, None).unwrap();
    // The larger model is last, because the threads keep their buffers.
    let runs = [
        (DTypeChoice::Bf16, "auto", 192, 1, None),
        (DTypeChoice::Bf16, "q8_0", 192, 1, None),
        (DTypeChoice::F32, "auto", 192, 3, None),
        // Two passes.
        (DTypeChoice::F32, "auto", 192, 2, Some("latent")),
    ];
    for (dtype, weight_type, side, batch_size, hires) in runs {
        for (choice, mode) in
            [(ModeChoice::Full, Mode::Full), (ModeChoice::Medvram, Mode::Medvram), (ModeChoice::Lowvram, Mode::LOWVRAM)]
        {
            let memory = MemoryOptions { mode: choice, ..MemoryOptions::default() };
            let weight_type = weight_type.parse().unwrap();
            let setup = Setup { device: DeviceChoice::Cpu, dtype, weight_type, memory, ..Setup::default() };
            let request = Request {
                prompt: "a red apple".into(),
                width: Some(side),
                height: Some(side),
                steps: Some(2),
                seed: Some(1),
                batch_size: Some(batch_size),
                hires_scale: hires.map(|_| 1.5),
                hires_upscaler: hires.map(|name| name.parse().unwrap()),
                ..Request::default()
            };
            let work = Workload::of(&request.resolve(&model).unwrap());
            let plan = planner.plan(mode, &work, ExecutionTarget::of(&setup).0, None).unwrap();
            let [used, reserved] = measured(&model, &setup, &request);
            let kept = if mode == Mode::LOWVRAM || hires.is_some() { STREAMING } else { KEPT };
            let in_use = plan.peak() - plan.largest().waiting;
            for (what, planned, found, bound) in
                [("in use", in_use, used, IN_USE), ("kept", plan.peak(), reserved, kept)]
            {
                let ratio = planned as f64 / found as f64;
                println!(
                    "{mode}, {dtype:?}, {batch_size} of {side}, {hires:?}: {planned} planned, {found} {what}: {ratio:.3}"
                );
                assert!(
                    (ratio - 1.0).abs() <= bound,
                    "{mode}, {dtype:?}, {hires:?}: {planned} planned, {found} {what}"
                );
            }
        }
    }
    plans_with_controls_equal_the_memory_of_runs(&model);
}
