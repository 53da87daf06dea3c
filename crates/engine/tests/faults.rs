//! Every allocation of a run fails once, and from there on: the result is the correct image or a clear error, and all
//! memory is freed.

use std::ops::ControlFlow;

use kiln_engine::pipeline::{Batch, BatchRequest, BatchSink, BatchTimes, DecodedImage, Latents, run_batch};
use kiln_engine::{
    DTypeChoice, DeviceChoice, Engine, Event, HostPool, Job, MemoryOptions, ModeChoice, ModelFolder, Request, Result,
    Setup,
};
use kiln_mempool::Faults;
use kiln_testkit::fixtures;

#[global_allocator]
static ALLOCATOR: HostPool = HostPool;

fn model() -> ModelFolder {
    ModelFolder::open(&fixtures("models/sd1")).unwrap()
}

fn job(model: &ModelFolder) -> Job {
    let (width, height) = (Some(32), Some(32));
    let request =
        Request { prompt: "a pear".into(), seed: Some(3), steps: Some(1), width, height, ..Request::default() };
    request.resolve(model).unwrap()
}

/// The image, and the number of out-of-memory fallbacks of the run.
fn run(mode: ModeChoice) -> Result<(Vec<u8>, usize)> {
    let memory = MemoryOptions { mode, ..MemoryOptions::default() };
    let setup = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, memory, ..Setup::default() };
    let (mut rgb, mut smaller) = (Vec::new(), 0);
    let mut count = |event: &Event| smaller += usize::from(matches!(event, Event::Smaller { .. }));
    let mut engine = Engine::load(model(), &setup, &mut |event| {
        count(&event);
        ControlFlow::Continue(())
    })?;
    let job = job(engine.model());
    engine.txt2img(&job, &mut |event| {
        count(&event);
        if let Event::Image(image) = event {
            rgb = image.rgb;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok((rgb, smaller))
}

/// All requests in the usual mode; in other modes every eighth, and for permanent failures every fifth, to limit the
/// duration.
const STRIDES: [(ModeChoice, usize); 3] = [(ModeChoice::Full, 1), (ModeChoice::Medvram, 8), (ModeChoice::Lowvram, 8)];
const LASTING: u64 = 5;

/// The latents of a batch, which are not decoded.
#[derive(Default)]
struct LatentsOnly {
    latents: Vec<Vec<f32>>,
    /// How often the engine went on with less of the model in memory.
    smaller: usize,
}

impl BatchSink for LatentsOnly {
    fn event(&mut self, event: Event) -> Result<()> {
        self.smaller += usize::from(matches!(event, Event::Smaller { .. }));
        Ok(())
    }

    fn latents(&mut self, _: &Engine, _: usize, latents: Latents, _: BatchTimes) -> Result<Option<Latents>> {
        self.latents.push(latents.latents.flatten_all()?.to_vec1()?);
        Ok(None)
    }

    fn image(&mut self, _: &mut Engine, _: usize, _: DecodedImage) -> Result<()> {
        Ok(())
    }
}

/// A batch that gives way fails where memory is out, and the next one finds the model in the mode that was planned.
fn batches_that_fail_leave_the_mode() {
    let memory = MemoryOptions { mode: ModeChoice::Full, ..MemoryOptions::default() };
    let setup = Setup { device: DeviceChoice::Cpu, dtype: DTypeChoice::F32, memory, ..Setup::default() };
    let mut engine = Engine::load(model(), &setup, &mut |_| ControlFlow::Continue(())).unwrap();
    let job = job(engine.model());
    let run = |engine: &mut Engine| {
        let (batch, shape) = (Batch::of_jobs([&job, &job]), engine.shape_of(&job)?);
        let request = BatchRequest::of_set(engine, &batch, shape, 2)?.or_fail();
        let mut sink = LatentsOnly::default();
        run_batch(engine, &batch, request, &mut sink).map(|()| sink)
    };
    let expected = run(&mut engine).unwrap().latents;
    let counter = Faults::count();
    run(&mut engine).unwrap();
    let requests = counter.seen();
    drop(counter);
    let mut failed = 0;
    for n in (0..requests).step_by(4) {
        let faults = Faults::fail_once(n);
        let result = run(&mut engine);
        drop(faults);
        match result {
            Ok(sink) => assert!(sink.smaller == 0 && sink.latents == expected, "request {n} of {requests}"),
            Err(error) => {
                assert!(error.is_out_of_memory(), "request {n} of {requests}: {error}");
                failed += 1;
            }
        }
        let next = run(&mut engine).unwrap();
        assert!(next.smaller == 0 && next.latents == expected, "after request {n} of {requests}");
    }
    assert!(failed > 0, "no request failed of {requests}");
}

#[test]
fn every_failure_ends_with_the_correct_image_or_a_clear_error() {
    batches_that_fail_leave_the_mode();
    for (mode, stride) in STRIDES {
        let (expected, _) = run(mode).unwrap();
        let counter = Faults::count();
        run(mode).unwrap();
        let requests = counter.seen();
        drop(counter);
        assert!(requests > 100, "{mode:?}: {requests} requests");
        let (mut runs, mut met, mut refused, mut used) = (0, 0, 0, Vec::new());
        for n in (0..requests).step_by(stride) {
            let lasting = Some(Faults::fail_from as fn(u64) -> Faults).filter(|_| n % LASTING == 0);
            for (i, faults) in [Some(Faults::fail_once as fn(u64) -> Faults), lasting].into_iter().flatten().enumerate()
            {
                let faults = faults(n);
                let result = run(mode);
                drop(faults);
                runs += 1;
                match result {
                    Ok((rgb, smaller)) => {
                        assert!(i == 0, "{mode:?}: another image without memory from request {n} of {requests}");
                        assert!(rgb == expected, "{mode:?}: request {n} of {requests} failed, another image");
                        met += usize::from(smaller > 0);
                    }
                    Err(error) => {
                        let message = error.to_string();
                        assert!(error.is_out_of_memory(), "{mode:?}: request {n} of {requests}: {message}");
                        assert!(message.contains("use a smaller image or batch"), "{message}");
                        refused += 1;
                    }
                }
                used.push(HostPool::statistics().used);
            }
        }
        println!(
            "{mode:?}: of {requests} requests {runs} failed: {met} runs went on with less, {refused} were refused"
        );
        assert!(met + refused == runs, "a failure went unseen");
        // A thread keeps its largest buffer; a leak of one run would repeat in hundreds of runs.
        let (half, end) = (used[used.len() / 2], used[used.len() - 1]);
        assert!(end <= half + (256 << 10), "{mode:?}: {half} bytes in use after half of the runs, {end} at the end");
    }
}
