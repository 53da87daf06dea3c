//! One engine of a run: it takes portions of the set until nothing is left.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_engine::pipeline::{DecodedImage, Latents};
use kiln_engine::{Engine, Error, Event, Job, LoraUse, Result, Setup, Stage, Timings};
use kiln_models::ModelFolder;
use parking_lot::{Mutex, MutexGuard};

use super::device_report::{DeviceReport, Waits};
use super::events::BatchEvent;
use super::group_size::GroupSize;
use super::image_task::{ImageTask, Unsaved};
use super::known_sizes::KnownSizes;
use super::overlap_worker::{Decoded, Done, OverlapWorker};
use super::plan::BatchOptions;
use super::run_state::RunState;
use super::saver::SaveQueue;
use super::todos::Todo;
use super::work_queue::{At, LOOK_AHEAD, WorkQueue};

/// State shared by the engines of a run.
pub(super) struct Common<'s, 'a, 'w> {
    pub(super) state: &'s Mutex<RunState<'a, 'w>>,
    pub(super) queue: &'s WorkQueue,
    /// The models, in the order of the queue.
    pub(super) models: &'s [Arc<ModelFolder>],
    pub(super) options: &'s BatchOptions,
    /// The batch sizes that were found, in this run or before.
    pub(super) sizes: &'s KnownSizes,
    pub(super) trial: Trial<'s>,
}

/// Test hooks: simulated failures and timings.
#[derive(Clone, Copy)]
pub(super) struct Trial<'s> {
    /// Whether the device of the engine of this number is lost.
    pub(super) is_lost: &'s (dyn Fn(usize) -> bool + Sync),
    /// Whether there is memory for so many images at once.
    pub(super) has_memory: &'s (dyn Fn(usize) -> bool + Sync),
    /// How long a batch of so many images takes, instead of the time that was measured.
    pub(super) time: &'s (dyn Fn(usize, Duration) -> Duration + Sync),
}

impl Trial<'_> {
    /// Nothing else than what happens.
    pub(super) const NONE: Trial<'static> =
        Trial { is_lost: &|_| false, has_memory: &|_| true, time: &|_, measured| measured };

    /// The error with which a batch of `images` fails before it begins.
    pub(super) fn before(&self, engine: usize, images: usize) -> Result<()> {
        if (self.is_lost)(engine) {
            return Err(Error::Device("a test has it lost".into()));
        }
        if !(self.has_memory)(images) {
            let (pool, requested, used) = ("test", images as u64, 0);
            return Err(kiln_mempool::Error::OutOfMemory { pool, requested, used, ceiling: None }.into());
        }
        Ok(())
    }
}

/// The run of one engine.
pub(super) struct DeviceRun<'s, 'a, 'w> {
    pub(super) common: &'s Common<'s, 'a, 'w>,
    /// The number of the engine, and how it runs models.
    pub(super) number: usize,
    pub(super) setup: &'s Setup,
    saving: SaveQueue,
    /// A model that was loaded before the run.
    loaded: Option<&'s mut Engine>,
    /// Encodes and decodes while the engine denoises, if that pays, from the first image on.
    pub(super) worker: Option<OverlapWorker>,
    /// Images for which the worker had no memory. They are decoded when the engine has its turn.
    pub(super) undecoded: Vec<ImageTask<Latents>>,
    /// How many images of the current group run at once.
    pub(super) size: GroupSize,
    /// Images that were taken and are neither saved nor failed.
    pub(super) held: HashMap<usize, Arc<Job>>,
    /// The report of this engine, without the waits.
    pub(super) report: DeviceReport,
    waits: Cell<Waits>,
}

impl<'s, 'a, 'w> DeviceRun<'s, 'a, 'w> {
    pub(super) fn new(
        common: &'s Common<'s, 'a, 'w>,
        number: usize,
        setup: &'s Setup,
        saving: SaveQueue,
        loaded: Option<&'s mut Engine>,
    ) -> Self {
        let (worker, undecoded, held) = (None, Vec::new(), HashMap::new());
        let report = DeviceReport { device: setup.device.to_string(), ..DeviceReport::default() };
        let (size, waits) = (GroupSize::default(), Cell::default());
        Self { common, number, setup, saving, loaded, worker, undecoded, size, held, report, waits }
    }

    pub(super) fn state(&self) -> MutexGuard<'s, RunState<'a, 'w>> {
        self.waiting(|waits| &mut waits.state, || self.common.state.lock())
    }

    /// Does `wait`, and adds its time to that place.
    pub(super) fn waiting<T>(&self, place: impl Fn(&mut Waits) -> &mut f64, wait: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = wait();
        let mut waits = self.waits.get();
        *place(&mut waits) += start.elapsed().as_secs_f64();
        self.waits.set(waits);
        result
    }

    /// Makes what the queue has for this engine. Whatever ends it ends the others, too.
    pub(super) fn run(mut self) -> (Result<()>, DeviceReport) {
        let result = self.run_models();
        if result.is_err() {
            self.state().stopping = true;
            self.common.queue.stop();
        }
        let ended = self.state().start.elapsed().as_secs_f64();
        (result, DeviceReport { ended, waits: self.waits.get(), ..self.report })
    }

    /// Makes models after models.
    fn run_models(&mut self) -> Result<()> {
        let queue = self.common.queue;
        while let Some((at, _)) = self.waiting(|waits| &mut waits.others, || queue.wait_for_next(self.number)) {
            let Some((_, first)) = queue.first(self.number, at) else { continue };
            let model = &self.common.models[at.model];
            self.state().tell_model(&model.name())?;
            let mut known = self.loaded.take_if(|engine| is_same(engine.model().path(), model.path()));
            let mut own = None;
            let before = known.as_ref().map_or_else(Timings::default, |engine| engine.timings());
            let engine = match &mut known {
                Some(engine) => Ok(&mut **engine),
                None => self.load(model, &first).map(|engine| own.insert(engine)),
            };
            let engine = match engine {
                Ok(engine) => engine,
                // What holds for every job is the run's error, not theirs.
                Err(error @ (Error::Interrupted | Error::Device(_))) => return Err(error),
                Err(error) => {
                    let orphans = queue.refuse(self.number, at.model, &error.to_string());
                    if !orphans.is_empty() && self.common.models.len() == 1 {
                        return Err(error);
                    }
                    self.fail_all(orphans)?;
                    continue;
                }
            };
            let result = self.run_model(engine, at.model);
            let result = result.and(self.finish_decoding(engine));
            self.report.timings += engine.timings() - before;
            match result {
                Err(error) if !matches!(error, Error::Interrupted) && !self.is_alive(engine) => {
                    return self.lose(&error);
                }
                other => other?,
            }
            self.loaded = known.or(self.loaded.take());
        }
        Ok(())
    }

    /// Makes images of a model until none of them is left for this engine.
    fn run_model(&mut self, engine: &mut Engine, model: usize) -> Result<()> {
        let queue = self.common.queue;
        let mut current: Option<At> = None;
        loop {
            let Some((at, left)) = queue.next(self.number) else {
                // What is being decoded may come back.
                self.finish_decoding(engine)?;
                match queue.next(self.number) {
                    Some((at, _)) if at.model == model => continue,
                    _ => return Ok(()),
                }
            };
            if at.model != model {
                return Ok(());
            }
            if current != Some(at) {
                let Some((_, first)) = queue.first(self.number, at) else { continue };
                if let Err(error) = engine.take_networks(&first, &mut |event| self.event(event)) {
                    self.refuse_networks(engine, at, error)?;
                    continue;
                }
                self.size = GroupSize::new(self.common, engine, &first, left);
                current = Some(at);
            }
            let (size, batches) = self.size.next(self.common, engine, (at, left));
            let images = queue.take(self.number, at, (size, batches));
            self.held.extend(images.iter().cloned());
            self.run_portion(engine, &images, size)?;
        }
    }

    /// The networks of a group cannot be opened: the next portion of it fails.
    fn refuse_networks(&mut self, engine: &Engine, at: At, error: Error) -> Result<()> {
        if matches!(error, Error::Interrupted) {
            return Err(error);
        }
        let images = self.common.queue.take(self.number, at, (1, LOOK_AHEAD));
        self.held.extend(images.iter().cloned());
        images.iter().try_for_each(|(id, _)| self.fail(engine, *id, error.to_string(), error.is_of_device()))
    }

    /// Loads a model with the first job's LoRAs, or without where they are at fault: then that job will say so.
    fn load(&mut self, model: &ModelFolder, first: &Job) -> Result<Engine> {
        let setup = self.setup;
        let mut load = |loras: &[LoraUse]| {
            let mut failure = None;
            let mut watch = |event| match self.event(event) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            };
            let engine = Engine::load_expecting(model.clone(), setup, first, loras, &mut watch);
            match failure {
                Some(error) => Err(error),
                None => engine,
            }
        };
        match load(&first.loras) {
            Err(error) if !first.loras.is_empty() && !matches!(error, Error::Interrupted) => load(&[]),
            other => other,
        }
    }

    /// Whether the engine's device still works.
    fn is_alive(&self, engine: &Engine) -> bool {
        engine.is_alive() && !(self.common.trial.is_lost)(self.number)
    }

    /// Leaves everything to the other engines; an error if there is none.
    fn lose(&mut self, error: &Error) -> Result<()> {
        let device = self.setup.device;
        let lost = format!("{device} does not work any more: {error}");
        let taken = match self.worker.take() {
            Some(worker) => self.take(worker.finish()),
            None => Ok(()),
        };
        self.undecoded.clear();
        let held = self.held.drain().collect();
        match self.common.queue.lose(self.number, held, &lost) {
            None => Err(Error::Device(lost)),
            Some(orphans) => {
                tracing::warn!("{lost}");
                taken.and(self.state().tell(BatchEvent::Warning(format!("{lost}; the other devices go on"))))?;
                self.fail_all(orphans)
            }
        }
    }

    /// Takes an event of the engine, and looks what other threads have done.
    pub(super) fn event(&mut self, event: Event) -> Result<()> {
        self.look()?;
        self.pass_on(event)
    }

    fn pass_on(&mut self, event: Event) -> Result<()> {
        let name =
            if self.common.options.setups.len() > 1 { format!("{}: ", self.setup.device) } else { String::new() };
        let mut state = self.state();
        match event {
            Event::Begin(stage) => state.tell(BatchEvent::Begin(stage)),
            Event::Step { done, total } => state.tell(BatchEvent::Step { done, total }),
            Event::DecodeAgain { seed, from, to, .. } => state.tell(BatchEvent::Warning(format!(
                "{name}the image with seed {seed} overflowed {from} in the VAE; it and all that follow are decoded in {to}"
            ))),
            Event::Smaller { stage, from, to } => state.tell(BatchEvent::Warning(format!(
                "{name}no memory for {} with {from}; going on with {to}",
                stage.doing()
            ))),
            Event::Text { .. } => state.tell(BatchEvent::Begin(Stage::Encode)),
            Event::Enlarge { .. } => state.tell(BatchEvent::Begin(Stage::Upscale)),
            Event::Preview { .. } | Event::Image(_) => Ok(()),
        }
    }

    /// Takes the images that were decoded and saved.
    fn look(&mut self) -> Result<()> {
        let news = self.worker.as_ref().map(|worker| worker.done(Duration::ZERO)).unwrap_or_default();
        self.take(news)?;
        self.state().look()
    }

    /// Takes what the worker has done: all of it, also where the run is to stop.
    pub(super) fn take(&mut self, news: Vec<Done>) -> Result<()> {
        let take = |done| match done {
            Done::Decoded(decoded) => self.take_one(*decoded),
            Done::Encoded(duration) => {
                self.report.timings.encode += duration;
                Ok(())
            }
        };
        news.into_iter().map(take).fold(Ok(()), Result::and)
    }

    fn take_one(&mut self, decoded: Decoded) -> Result<()> {
        let Decoded { task, events } = decoded;
        let told = events.into_iter().try_for_each(|event| self.pass_on(event));
        match task {
            Ok(task) => {
                self.report.timings.decode += task.content.decode;
                self.save(task)?;
            }
            Err((task, error)) if error.is_of_device() => {
                tracing::warn!("decoding while steps run: {error}; it is tried again between them");
                self.undecoded.push(task);
            }
            Err((task, error)) => self.fail_all(vec![(task.id, error.to_string())])?,
        }
        told
    }

    /// Hands an image to the threads that save.
    pub(super) fn save(&mut self, mut task: ImageTask<DecodedImage>) -> Result<()> {
        task.seconds.decode = task.content.decode.as_secs_f64();
        let mut state = self.state();
        let Todo { task: of_set, path, replace, .. } = &state.todos[task.id];
        let file = |image| Unsaved { image, key: of_set.key.clone(), path: path.clone(), replace: *replace };
        let (id, (task, image)) = (task.id, task.with(()));
        let task = task.with(file(image)).0;
        drop(state);
        let given = self.waiting(|waits| &mut waits.saving, || self.saving.give(task));
        given.map_err(|error| self.state().stop(error))?;
        self.held.remove(&id);
        self.report.images += 1;
        state = self.state();
        state.look()
    }

    /// An image could not be made here: another engine makes it if that may help; otherwise it has failed.
    ///
    /// # Errors
    /// [`Error::Device`] if the device is lost: the image stays with this engine then, which gives it back.
    pub(super) fn fail(&mut self, engine: &Engine, id: usize, error: String, of_device: bool) -> Result<()> {
        if of_device && !self.is_alive(engine) {
            return Err(Error::Device(error));
        }
        match self.held.remove(&id) {
            Some(job) if of_device && self.common.queue.pass_on(self.number, (id, job.clone()), &error) => {
                tracing::warn!("{} cannot make an image, which another device tries: {error}", self.setup.device);
                Ok(())
            }
            _ => self.state().fail(id, &error),
        }
    }

    fn fail_all(&mut self, images: Vec<(usize, String)>) -> Result<()> {
        images.into_iter().try_for_each(|(id, error)| {
            self.held.remove(&id);
            self.state().fail(id, &error)
        })
    }
}

/// Whether two paths name one file or folder.
fn is_same(one: &Path, other: &Path) -> bool {
    one == other || one.canonicalize().ok().is_some_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}
