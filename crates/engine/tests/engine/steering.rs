//! A caller that takes part in a job: its noise and latents are used, and its changes between steps.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use candle_core::Tensor;
use kiln_engine::{Engine, Error, Event, Job, NoiseDraw, Request, Result, Steering, StepChange};
use kiln_scheduler::CpuRng;

use crate::support::{cpu, request, run, tiny, values};

type Change = Box<dyn Fn(usize, &Tensor) -> Result<StepChange> + Send + Sync>;

/// A caller with a generator of its own, and a function that it calls after steps.
#[derive(Default)]
struct Caller {
    rng: Option<Mutex<CpuRng>>,
    input: Option<Tensor>,
    change: Option<Change>,
    draws: Mutex<Vec<NoiseDraw>>,
}

impl Steering for Caller {
    fn noise(&self, draw: &NoiseDraw) -> Result<Option<Vec<f32>>> {
        self.draws.lock().unwrap().push(*draw);
        Ok(self.rng.as_ref().map(|rng| rng.lock().unwrap().normals(draw.shape.iter().product())))
    }

    fn input_latents(&self) -> Result<Option<Tensor>> {
        Ok(self.input.clone())
    }

    fn sees_steps(&self) -> bool {
        self.change.is_some()
    }

    fn after_step(&self, done: usize, _: usize, latents: &Tensor) -> Result<StepChange> {
        self.change.as_ref().map_or(Ok(StepChange::default()), |change| change(done, latents))
    }
}

fn changing(change: impl Fn(usize, &Tensor) -> Result<StepChange> + Send + Sync + 'static) -> Caller {
    Caller { change: Some(Box::new(change)), ..Caller::default() }
}

/// The final latents of a job in which `caller` takes part, or the error, and the calls of the denoiser.
fn steered(engine: &mut Engine, job: &Job, caller: Arc<Caller>) -> (Result<Vec<f32>>, usize) {
    let (mut made, mut steps) = (Vec::new(), engine.timings().steps);
    engine.steer(Some(caller));
    let result = engine.txt2img(job, &mut |event| {
        if let Event::Image(image) = event {
            made.push(*image);
        }
        Ok(ControlFlow::Continue(()))
    });
    engine.steer(None);
    steps = engine.timings().steps - steps;
    (result.map(|()| made.iter().flat_map(|image| image.latents().unwrap().0).collect()), steps)
}

fn ancestral() -> Request {
    Request { sampler: Some("euler_a".parse().unwrap()), cfg_scale: Some(4.0), ..request("a cat", (32, 32), 4, 5) }
}

/// A caller's noise replaces that of the seeds, draw by draw, and nothing is drawn that no sampler asks for.
#[test]
fn the_noise_of_a_caller_is_that_of_an_equal_seed() {
    let mut engine = tiny("sd1", &cpu());
    let request = Request { seed: Some(5), ..ancestral() };
    let job = request.resolve(engine.model()).unwrap();
    let expected = values(&run(&mut engine, &job));
    let other = Request { seed: Some(6), ..request }.resolve(engine.model()).unwrap();
    let caller = Arc::new(Caller { rng: Some(Mutex::new(CpuRng::new(5))), ..Caller::default() });
    assert_eq!(steered(&mut engine, &other, caller.clone()).0.unwrap(), expected);
    let draws = caller.draws.lock().unwrap();
    assert_eq!(draws.iter().map(|draw| draw.number).collect::<Vec<_>>(), (0..draws.len()).collect::<Vec<_>>());
    assert!(draws.iter().all(|draw| !draw.is_of_input && draw.first == 0 && draw.shape[..2] == [1, 4]));
    // A caller that gives none leaves the seeds' noise.
    assert_eq!(steered(&mut engine, &job, Arc::default()).0.unwrap(), expected);
    assert_eq!(values(&run(&mut engine, &job)), expected, "nothing is left behind");
}

#[test]
fn a_caller_changes_latents_and_guidance_between_steps_and_ends_a_run() {
    let mut engine = tiny("sd1", &cpu());
    let job = Request { sampler: Some("ddim".parse().unwrap()), ..ancestral() }.resolve(engine.model()).unwrap();
    let plain = values(&run(&mut engine, &job));
    let of = |engine: &mut Engine, caller: Caller| steered(engine, &job, Arc::new(caller));

    let (same, steps) = of(&mut engine, changing(|_, _| Ok(StepChange::default())));
    assert_eq!((same.unwrap(), steps), (plain.clone(), 4));
    let halved =
        |_: usize, latents: &Tensor| Ok(StepChange { latents: Some((latents * 0.5)?), ..StepChange::default() });
    assert_ne!(of(&mut engine, changing(halved)).0.unwrap(), plain);
    let unguided =
        |done: usize, _: &Tensor| Ok(StepChange { cfg_scale: (done == 2).then_some(1.0), ..StepChange::default() });
    let scheduled = Request { cfg_scale: None, cfg_schedule: Some(vec![4.0, 4.0, 1.0, 1.0]), ..ancestral() };
    let scheduled = Request { sampler: Some("ddim".parse().unwrap()), ..scheduled }.resolve(engine.model()).unwrap();
    let expected = values(&run(&mut engine, &scheduled));
    assert_eq!(of(&mut engine, changing(unguided)).0.unwrap(), expected);

    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    let ends = move |done: usize, latents: &Tensor| {
        kept.lock().unwrap().clone_from(&latents.flatten_all()?.to_vec1::<f32>()?);
        Ok(StepChange { ends: done == 3, ..StepChange::default() })
    };
    assert_eq!(of(&mut engine, changing(ends)).0.unwrap(), *seen.lock().unwrap(), "what was there is decoded");

    let small = |_: usize, latents: &Tensor| {
        Ok(StepChange { latents: Some(latents.narrow(2, 0, 1)?), ..StepChange::default() })
    };
    let message = of(&mut engine, changing(small)).0.unwrap_err().to_string();
    assert!(message.contains("`latents` is [1, 4, 1,"), "{message}");
    assert!(matches!(of(&mut engine, changing(|_, _| Err(Error::Interrupted))).0, Err(Error::Interrupted)));
    assert_eq!(values(&run(&mut engine, &job)), plain, "nothing is left behind");
}
