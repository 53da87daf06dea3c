//! Making what is missing of a set.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kiln_mempool::ProcessMemory;

use super::events::{BatchEvent, BatchProgress, BatchReport};
use super::groups::{batches, groups};
use super::index::write_index;
use super::journal::{Journal, Line, Seconds};
use super::plan::{BatchOptions, BatchRun, State, Todo};
use super::saver::{Parcel, Saved, Savers};
use super::sheet::write_sheet;
use crate::engine::{Drawn, Engine, Prepared};
use crate::error::{Error, Result};
use crate::event::Event;
use crate::locate::locate_model;
use crate::lora::LoraUse;
use crate::model_folder::ModelFolder;
use crate::plan::{BatchSize, Planner};
use crate::resolved::Job;
use crate::settings::Origin;
use crate::text::Shape;
use crate::together::Together;

/// Batches whose texts are looked at before they are drawn.
const LOOK_AHEAD: usize = 64;

/// Who listens, and may stop the run.
type Watch<'a> = dyn FnMut(BatchEvent<'_>) -> ControlFlow<()> + 'a;

/// The pictures of one model, ready to be drawn.
struct OfModel {
    model: Arc<ModelFolder>,
    /// With their places in the list of todos.
    jobs: Vec<(usize, Job)>,
}

impl BatchRun {
    /// Makes the pictures that are missing. `watch` is told how it goes, and may stop the run between steps: what is
    /// drawn by then is saved. A picture that cannot be made is recorded, and the others go on.
    ///
    /// # Errors
    /// Those of the journal, the index and the contact sheet, and of a device that is not there. All else is counted in
    /// the report.
    pub fn run(self, watch: &mut Watch<'_>) -> Result<BatchReport> {
        let (index, parts) = (self.own_file("index", ".jsonl"), self.own_file(".parts", ""));
        let (known, failed) = (self.made(), self.failed());
        let Self { todos, axes, journal, options } = self;
        let _ = std::fs::remove_dir_all(&parts); // what a process that was killed has left
        let journal = Arc::new(Mutex::new(journal));
        let start = Instant::now();
        let savers = Savers::start(&journal, &parts)?;
        let (made, done, saved, drawing, card_memory) = (0, known, Duration::ZERO, None, None);
        let mut desk = Desk { todos, journal, savers, watch, start, drawing, made, saved, done, failed, card_memory };
        let mut report = BatchReport { known, all: desk.todos.len(), ..BatchReport::default() };
        let result = desk.make(&options, &mut report);
        // Whatever happened, what is drawn is saved, and the index tells it.
        let rest = desk.savers.finish();
        let recorded = desk.record(rest);
        let _ = std::fs::remove_dir_all(&parts);
        let written = write_index(&index, &desk.todos);
        report.interrupted = matches!(result, Err(Error::Interrupted)) || matches!(recorded, Err(Error::Interrupted));
        match result.and(recorded) {
            Ok(()) | Err(Error::Interrupted) => written?,
            error => return error.map(|()| report),
        }
        (report.made, report.timings.save) = (desk.made, desk.saved);
        report.failed = desk.failed;
        if let Some(sheet) = options.sheet.as_ref().filter(|_| !report.interrupted) {
            write_sheet(sheet, &desk.todos, &axes)?;
        }
        report.wall = start.elapsed();
        report.timings.pictures = desk.made;
        report.peak_memory = ProcessMemory::now().unwrap_or_default().peak_resident;
        Ok(report)
    }
}

/// What a run has at hand beside the engine.
struct Desk<'a, 'w> {
    todos: Vec<Todo>,
    journal: Arc<Mutex<Journal>>,
    savers: Savers,
    watch: &'a mut Watch<'w>,
    start: Instant,
    /// When the first picture was begun: loading counts in no speed.
    drawing: Option<Instant>,
    /// Pictures of this run.
    made: usize,
    /// How long saving them took.
    saved: Duration,
    /// Pictures of all runs.
    done: usize,
    failed: usize,
    card_memory: Option<u64>,
}

impl Desk<'_, '_> {
    /// Draws all that is pending, model by model.
    fn make(&mut self, options: &BatchOptions, report: &mut BatchReport) -> Result<()> {
        options.setup.check()?;
        let models = self.resolve(options)?;
        let only_one = models.len() == 1;
        for OfModel { model, jobs } in models {
            self.tell(BatchEvent::Model(&model.name()))?;
            let groups = groups(jobs.iter().map(|(_, job)| job));
            let Some(first) = groups.first().and_then(|group| jobs.get(*group.first()?)) else { continue };
            let mut engine = match self.load(&model, options, &first.1.loras) {
                Ok(engine) => engine,
                // What holds for every job is the run's error, not theirs.
                Err(error @ (Error::Interrupted | Error::Device(_))) => return Err(error),
                Err(error) if only_one => return Err(error),
                Err(error) => {
                    let error = error.to_string();
                    jobs.iter().try_for_each(|(id, _)| self.fail(*id, &error))?;
                    continue;
                }
            };
            let result = groups.iter().try_for_each(|group| {
                let group: Vec<&(usize, Job)> = group.iter().map(|&i| &jobs[i]).collect();
                self.draw_group(&mut engine, &model, &group, options)
            });
            let timings = engine.timings();
            let sum = &mut report.timings;
            sum.load += timings.load;
            sum.encode += timings.encode;
            sum.texts_encoded += timings.texts_encoded;
            sum.texts_known += timings.texts_known;
            sum.denoise += timings.denoise;
            sum.steps += timings.steps;
            sum.decode += timings.decode;
            result?;
        }
        Ok(())
    }

    /// Loads a model with the first job's LoRAs, or without where they are at fault: then that job will say so.
    fn load(&mut self, model: &ModelFolder, options: &BatchOptions, loras: &[LoraUse]) -> Result<Engine> {
        let mut load = |loras| {
            let mut failure = None;
            let mut watch = |event| match self.event(event) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failure = Some(error);
                    ControlFlow::Break(())
                }
            };
            let engine = Engine::load_with(model.clone(), &options.setup, loras, &mut watch);
            match failure {
                Some(error) => Err(error),
                None => engine,
            }
        };
        match load(loras) {
            Err(error) if !loras.is_empty() && !matches!(error, Error::Interrupted) => load(&[]),
            other => other,
        }
    }

    /// Opens the models and checks every job, before anything is loaded. What cannot be is recorded.
    fn resolve(&mut self, options: &BatchOptions) -> Result<Vec<OfModel>> {
        let mut models: Vec<(PathBuf, OfModel)> = Vec::new();
        let mut opened: HashMap<Option<PathBuf>, std::result::Result<usize, String>> = HashMap::new();
        for id in 0..self.todos.len() {
            let Todo { task, state, .. } = &self.todos[id];
            if *state != State::Pending {
                continue;
            }
            let open = |models: &mut Vec<(PathBuf, OfModel)>| -> Result<usize> {
                let path = locate_model(task.model.as_deref())?;
                // Under its own name: in the Hub's cache a file is a link to what has none.
                let whole = path.canonicalize().map_err(Error::read(&path))?;
                if let Some(known) = models.iter().position(|(other, _)| *other == whole) {
                    return Ok(known);
                }
                let model = Arc::new(ModelFolder::open_with(&path, &options.model_options)?);
                models.push((whole, OfModel { model, jobs: Vec::new() }));
                Ok(models.len() - 1)
            };
            let model = opened
                .entry(task.model.clone())
                .or_insert_with(|| open(&mut models).map_err(|error| error.to_string()))
                .clone();
            let job = model.and_then(|model| {
                let job = task.request.resolve(&models[model].1.model).map_err(|error| error.to_string())?;
                Ok((model, job))
            });
            match job {
                Ok((model, job)) => models[model].1.jobs.push((id, job)),
                Err(error) => self.fail(id, &error)?,
            }
        }
        Ok(models.into_iter().map(|(_, of_model)| of_model).filter(|of_model| !of_model.jobs.is_empty()).collect())
    }

    /// Draws pictures that have all in common but texts and noise.
    fn draw_group(
        &mut self,
        engine: &mut Engine,
        model: &Arc<ModelFolder>,
        group: &[&(usize, Job)],
        options: &BatchOptions,
    ) -> Result<()> {
        let Some((_, first)) = group.first() else { return Ok(()) };
        if let Err(error) = engine.take_loras(&first.loras, &mut |event| self.event(event)) {
            return match error {
                Error::Interrupted => Err(error),
                error => {
                    let error = error.to_string();
                    group.iter().try_for_each(|(id, _)| self.fail(*id, &error))
                }
            };
        }
        let n = match options.batch_size {
            _ if options.deterministic || group.len() == 1 => 1,
            BatchSize::Of(n) => n.max(1),
            // What has no room at all says so when it is drawn.
            BatchSize::Auto => Planner::auto_batch_size_of(model, first, &options.setup, group.len()).unwrap_or(1),
        };
        for group in group.chunks(LOOK_AHEAD.saturating_mul(n)) {
            let mut shapes = Vec::with_capacity(group.len());
            for (i, (id, job)) in group.iter().enumerate() {
                match engine.shape_of(job) {
                    Ok(shape) => shapes.push((i, shape)),
                    Err(error) => self.fail(*id, &error.to_string())?,
                }
            }
            let shape_of: HashMap<usize, Shape> = shapes.iter().copied().collect();
            let batches = batches(shapes, n);
            for (i, batch) in batches.iter().enumerate() {
                engine.foresee(batches[i + 1..].iter().flatten().map(|&i| &group[i].1));
                let pictures: Vec<&(usize, Job)> = batch.iter().map(|&i| group[i]).collect();
                self.draw(engine, &pictures, shape_of[&batch[0]], n)?;
            }
        }
        Ok(())
    }

    /// Draws one batch. Where that fails, its pictures are drawn one by one, so that one does not take others along.
    fn draw(&mut self, engine: &mut Engine, pictures: &[&(usize, Job)], shape: Shape, n: usize) -> Result<()> {
        self.card_memory = engine.card_memory();
        self.drawing.get_or_insert_with(Instant::now);
        let together = Together::of_jobs(pictures.iter().map(|(_, job)| job));
        let work = shape.work(together.job(), n); // a last batch that is smaller is not planned anew
        let origin = engine.origin();
        let (desk, mut given) = (RefCell::new(&mut *self), 0);
        let result = engine.draw(&together, work, &mut |event| desk.borrow_mut().event(event), &mut |drawn, before| {
            let (id, job) = pictures[drawn.place];
            desk.borrow_mut().give(*id, job, &origin, drawn, before, pictures.len())?;
            given += 1;
            Ok(())
        });
        match result {
            Ok(()) => Ok(()),
            Err(error @ Error::Interrupted) => Err(error),
            Err(error) if pictures.len() == 1 => self.fail(pictures[0].0, &error.to_string()),
            Err(error) => {
                tracing::warn!("{} pictures at once: {error}; they are drawn one by one", pictures.len());
                pictures[given..].iter().try_for_each(|one| self.draw(engine, &[one], shape, 1))
            }
        }
    }

    /// Hands a picture to who saves it.
    fn give(
        &mut self,
        id: usize,
        job: &Job,
        origin: &Arc<Origin>,
        drawn: Drawn,
        before: Prepared,
        n: usize,
    ) -> Result<()> {
        let Drawn { image, latents, decode, .. } = drawn;
        let part = |duration: Duration| duration.as_secs_f64() / n as f64;
        let seconds = Seconds {
            encode: part(before.encode),
            denoise: part(before.denoise),
            decode: decode.as_secs_f64(),
            save: 0.0,
        };
        let Todo { task, path, replace, .. } = &self.todos[id];
        let (key, path, replace) = (task.key.clone(), path.clone(), *replace);
        let (job, origin) = (job.clone(), origin.clone());
        self.savers.give(Parcel { id, key, job, origin, image, latents, path, replace, seconds })?;
        let news = self.savers.news();
        self.record(news)
    }

    /// Takes the engine's news, and looks what was saved.
    fn event(&mut self, event: Event) -> Result<()> {
        let news = self.savers.news();
        self.record(news)?;
        match event {
            Event::Begin(stage) => self.tell(BatchEvent::Begin(stage)),
            Event::Step { done, total } => self.tell(BatchEvent::Step { done, total }),
            Event::DecodeAgain { seed, from, to, .. } => self.tell(BatchEvent::Warning(format!(
                "the picture with seed {seed} overflowed {from} in the VAE; it and all that follow are decoded in {to}"
            ))),
            Event::Smaller { stage, from, to } => self
                .tell(BatchEvent::Warning(format!("no memory for {} with {from}; going on with {to}", stage.doing()))),
            Event::Picture(_) => Ok(()),
        }
    }

    /// Takes note of what was saved or could not be.
    fn record(&mut self, news: Vec<Saved>) -> Result<()> {
        for Saved { id, result } in news {
            match result {
                Ok(made) => {
                    self.todos[id].state = State::Made(made);
                    self.made += 1;
                    self.done += 1;
                    self.saved += Duration::from_secs_f64(made.seconds.save);
                    let progress = self.progress();
                    let Todo { task, planned, path, .. } = &self.todos[id];
                    let (number, seed, seconds) = (task.number, planned.seed, made.seconds);
                    let event = BatchEvent::Made { number, file: path, seed, seconds, progress };
                    // Whoever wants to stop says so at the next step too; what is saved is noted in any case.
                    let _ = (self.watch)(event);
                }
                Err(error) => self.fail(id, &error.to_string())?,
            }
        }
        Ok(())
    }

    /// Records that a picture cannot be made.
    fn fail(&mut self, id: usize, error: &str) -> Result<()> {
        let line = Line::Failed { failed: self.todos[id].task.key.clone(), error: error.into() };
        self.journal.lock().unwrap_or_else(PoisonError::into_inner).append(&[line])?;
        self.todos[id].state = State::Failed(error.into());
        self.failed += 1;
        let progress = self.progress();
        let task = &self.todos[id].task;
        let _ = (self.watch)(BatchEvent::Failed { number: task.number, line: task.line, error, progress });
        Ok(())
    }

    fn tell(&mut self, event: BatchEvent<'_>) -> Result<()> {
        match (self.watch)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        }
    }

    fn progress(&self) -> BatchProgress {
        let Self { done, failed, .. } = *self;
        let (all, seconds) = (self.todos.len(), self.drawing.unwrap_or(self.start).elapsed().as_secs_f64());
        let images_per_second = self.made as f64 / seconds.max(1e-9);
        let left = (all - done - failed) as f64;
        BatchProgress {
            done,
            failed,
            all,
            images_per_second,
            seconds_left: if self.made > 0 { left / images_per_second } else { 0.0 },
            memory: ProcessMemory::now().unwrap_or_default().resident,
            card_memory: self.card_memory,
        }
    }
}
