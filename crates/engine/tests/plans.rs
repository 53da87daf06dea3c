//! Plans compared with whole runs on the CPU in every mode.

use std::ops::ControlFlow;

use kiln_engine::{
    ControlUse, DTypeChoice, DeviceChoice, Engine, ExecutionTarget, HostPool, IpAdapterUse, Job, MemoryOptions, Mode,
    ModeChoice, ModelFolder, Plan, Planner, Request, Setup, Workload,
};
use kiln_media::{Rgb8Image, StillFormat, encode};
use kiln_testkit::{TinyAdapter, repository};

use support::channels::{CONTROL, FILL, widened};

mod support;

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

/// The maximum relative error of used bytes.
const IN_USE: f64 = 0.05;
/// The same for reserved bytes: fragmentation depends on the order of the threads' requests. For a model with a few MiB
/// its fraction is larger than for a large model.
const KEPT: f64 = 0.15;
/// The same with slabs that stream, and with two passes, whose tensors have different sizes.
const KEPT_OF_MANY: f64 = 0.35;

const MODES: [(ModeChoice, Mode); 3] =
    [(ModeChoice::Full, Mode::Full), (ModeChoice::Medvram, Mode::Medvram), (ModeChoice::Lowvram, Mode::LOWVRAM)];

/// The peak used and reserved bytes of the host pool during a run.
fn measured(model: &ModelFolder, setup: &Setup, job: &Job) -> [usize; 2] {
    HostPool::trim(0.0);
    HostPool::reset_peaks();
    let mut engine = Engine::load(model.clone(), setup, &mut |_| ControlFlow::Continue(())).unwrap();
    engine.txt2img(job, &mut |_| Ok(ControlFlow::Continue(()))).unwrap();
    let after = HostPool::statistics();
    [after.peak_used, after.peak_reserved]
}

/// Used bytes that no plan has: a tokenizer's tables, and what the process keeps besides the threads' buffers, which a plan has.
/// For networks of a few MiB they would count, for others they do not.
fn unplanned(model: &ModelFolder, setup: &Setup, job: &Job, buffers: usize) -> usize {
    let memory = MemoryOptions { mode: ModeChoice::Lowvram, ..MemoryOptions::default() };
    let setup = Setup { memory, ..setup.clone() };
    measured(model, &setup, job); // the threads have their buffers
    let _engine = Engine::load(model.clone(), &setup, &mut |_| ControlFlow::Continue(())).unwrap();
    HostPool::statistics().used.saturating_sub(buffers)
}

/// Compares plan and run in each mode. `what` names the case. Reserved bytes are compared where `compares_kept`.
fn compare(what: &str, model: &ModelFolder, setup: &Setup, request: &Request, compares_kept: bool) {
    let before = HostPool::statistics().used;
    let job = request.resolve(model).unwrap();
    // A plan has the pixels of an input image.
    let pixels = if job.init.image().is_some() { HostPool::statistics().used.saturating_sub(before) } else { 0 };
    let planner = Planner::of_job(model, &job, setup).unwrap();
    let on = ExecutionTarget::of(setup).0;
    let workspace = |plan: Plan| plan.stages.iter().map(|stage| stage.workspace).max().unwrap();
    let buffers = workspace(planner.plan(Mode::LOWVRAM, &Workload::of(&job), on, None).unwrap());
    let unplanned = unplanned(model, setup, &job, buffers).saturating_sub(pixels);
    for (choice, mode) in MODES {
        let memory = MemoryOptions { mode: choice, ..MemoryOptions::default() };
        let setup = Setup { memory, ..setup.clone() };
        let plan = planner.plan(mode, &Workload::of(&job), on, None).unwrap();
        let [used, reserved] = measured(model, &setup, &job);
        let used = used - unplanned;
        let many = mode == Mode::LOWVRAM || request.hires_scale.is_some();
        let in_use = plan.stages.iter().map(|stage| stage.total() - stage.waiting).max().unwrap();
        let kept = if many { KEPT_OF_MANY } else { KEPT };
        let mut pairs = vec![("in use", in_use, used, IN_USE)];
        if compares_kept {
            pairs.push(("kept", plan.peak(), reserved, kept));
        }
        for (of, planned, found, bound) in pairs {
            let ratio = planned as f64 / found as f64;
            println!("{mode}, {what}: {planned} planned, {found} {of}: {ratio:.3} ({})", plan.largest().stage.id());
            assert!((ratio - 1.0).abs() <= bound, "{mode}, {what}: {planned} planned, {found} {of}");
        }
    }
}

fn setup(dtype: DTypeChoice, weight_type: &str) -> Setup {
    Setup { device: DeviceChoice::Cpu, dtype, weight_type: weight_type.parse().unwrap(), ..Setup::default() }
}

fn request(side: usize, batch_size: usize) -> Request {
    Request {
        prompt: "a red apple".into(),
        width: Some(side),
        height: Some(side),
        steps: Some(2),
        seed: Some(1),
        batch_size: Some(batch_size),
        ..Request::default()
    }
}

/// One test, because the counters apply to the whole process.
#[test]
fn plans_equal_the_memory_of_runs() {
    let model = ModelFolder::open(&repository().join("models/emoji")).unwrap();
    // The larger runs are last, because the threads keep their buffers.
    for (dtype, weight_type, batch_size) in
        [(DTypeChoice::Bf16, "auto", 1), (DTypeChoice::Bf16, "q8_0", 1), (DTypeChoice::F32, "auto", 3)]
    {
        let what = format!("{dtype:?}, {weight_type}, {batch_size} of 192");
        compare(&what, &model, &setup(dtype, weight_type), &request(192, batch_size), true);
    }
    let plain = setup(DTypeChoice::F32, "auto");
    let two_passes =
        Request { hires_scale: Some(1.5), hires_upscaler: Some("latent".parse().unwrap()), ..request(192, 2) };
    compare("two passes", &model, &plain, &two_passes, true);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image.png");
    let image = Rgb8Image::filled(256, 256, [255; 3]).unwrap();
    std::fs::write(&path, encode(&image, StillFormat::Png).unwrap()).unwrap();
    let models = repository().join("models");
    // Channels besides the latents, of a denoiser that holds little else.
    let wide = folder.path().join("wide");
    for (what, columns, request) in [
        ("a masked image", FILL, Request { init: Some(path.clone()), mask: Some(path.clone()), ..request(192, 2) }),
        (
            "a control image",
            CONTROL,
            Request { init: Some(path.clone()), references: vec![path.clone()], ..request(192, 2) },
        ),
    ] {
        widened(columns, &wide);
        compare(what, &ModelFolder::open(&wide).unwrap(), &plain, &request, false);
    }
    // All blocks run in each step.
    let transformer = ModelFolder::open(&models.join("emoji-sd3")).unwrap();
    let cached = Request { block_cache: Some(0.0), steps: Some(10), ..request(192, 2) };
    compare("the first-block cache", &transformer, &plain, &cached, false);
    let control = ControlUse { image: Some(path.clone()), ..ControlUse::new(models.join("emoji-controlnet-edges")) };
    let adapter = IpAdapterUse {
        image: Some(path),
        ..IpAdapterUse::new(models.join("emoji-ip-adapter/emoji-ip-adapter.safetensors"))
    };
    let t2i = folder.path().join("t2i-adapter");
    TinyAdapter { channels: &[64, 128, 192], ..TinyAdapter::new("full", 0) }.write(&t2i);
    let t2i = ControlUse { net: t2i, ..control.clone() };
    let base = request(192, 2);
    for (what, request) in [
        ("plain", base.clone()),
        ("PAG", Request { pag_scale: Some(3.0), ..base.clone() }),
        ("SAG", Request { sag_scale: Some(0.75), ..base.clone() }),
        ("FreeU", Request { freeu: Some("1.5,1.6,0.9,0.2".parse().unwrap()), ..base.clone() }),
        ("DeepCache", Request { cache: Some("deepcache:2".parse().unwrap()), ..base.clone() }),
        ("an IP-Adapter", Request { ip_adapters: vec![adapter.clone()], ..base.clone() }),
        ("an IP-Adapter and PAG", Request { ip_adapters: vec![adapter.clone()], pag_scale: Some(3.0), ..base.clone() }),
        ("a ControlNet", Request { controls: vec![control.clone()], ..base.clone() }),
        ("a T2I-Adapter", Request { controls: vec![t2i], ..base.clone() }),
        ("a ControlNet and an IP-Adapter", Request { controls: vec![control], ip_adapters: vec![adapter], ..base }),
    ] {
        compare(what, &model, &plain, &request, false);
    }
}
