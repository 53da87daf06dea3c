//! The thread that owns an engine.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_engine::{Engines, Error, Event, Result, Setup};
use kiln_models::{Defaults, ModelFolder};

use super::active::Active;
use super::decoding::Decoding;
use super::lanes::Lanes;
use super::order::in_order;
use super::policy::{MostImages, Policy};
use super::queue::{Load, Shared};
use super::speed::Speed;
use super::stop::Stop;
use super::task::{End, News};
use super::warm;

/// A model stays for so many times the time that its weights took to load, while others wait.
const STAY: u32 = 4;
/// The pixels of a step on a GPU by default: so many images of the model's size, or of 512x512 for a model of small images, which take a
/// GPU little longer than one of them does.
const IMAGES_GPU: usize = 8;
const LEAST_PIXELS: usize = 512 * 512;

/// The thread's state.
pub(super) struct Worker {
    pub(super) shared: Arc<Shared>,
    /// Its number among the workers, and how its engine runs models.
    number: usize,
    setup: Setup,
    pub(super) model: Arc<ModelFolder>,
    pub(super) engines: Engines,
    /// Until when the model stays while others wait.
    stays_until: Instant,
    pub(super) lanes: Lanes,
    pub(super) tasks: Vec<Active>,
    pub(super) policy: Policy,
    /// How fast it works, and the work of this turn.
    speed: Speed,
    pub(super) worked: usize,
    /// Decodes while steps run; from the first image on that it can decode.
    pub(super) decoding: Option<Decoding>,
    /// Why its device does not work any more.
    lost: Option<Error>,
    /// The images of a step for which there is memory, where more did not fit.
    pub(super) room: Option<usize>,
}

impl Worker {
    pub(super) fn new(shared: Arc<Shared>, number: usize, setup: Setup, model: Arc<ModelFolder>) -> Self {
        let (policy, most) = (Policy::new(MostImages::Count(1), 0), shared.options.max_loaded);
        Self {
            shared,
            number,
            engines: Engines::new(setup.clone(), most),
            setup,
            model,
            stays_until: Instant::now(),
            lanes: Lanes::default(),
            tasks: Vec::new(),
            policy,
            speed: Speed::default(),
            worked: 0,
            decoding: None,
            lost: None,
            room: None,
        }
    }

    /// Runs tasks until the scheduler ends.
    pub(super) fn run(mut self) {
        if let Err(error) = self.load() {
            // A device that is not there is a mistake of the caller; one without room leaves the work to others.
            if !error.is_of_device() || matches!(error, Error::Device(_)) || !self.shared.has_others(self.number) {
                self.shared.fail(error);
            } else {
                tracing::error!("{} is left out: {error}", self.setup.device);
            }
            return;
        }
        while let Some(tasks) = self.shared.take(self.number, self.tasks.is_empty()) {
            self.tasks.extend(tasks);
            self.shared.help(&mut self.tasks);
            self.obey();
            self.take_turn();
            self.run_errand();
            match self.delay() {
                Some(time) => self.shared.wait(self.number, time),
                None => self.work(),
            }
            self.publish();
            if let Some(error) = self.lost.take() {
                return self.lose(error);
            }
        }
    }

    /// A step, or what there is to decode.
    fn work(&mut self) {
        let begin = Instant::now();
        self.worked = 0;
        let moved = self.advance();
        self.take_decoded(!moved);
        if moved || !self.tasks.is_empty() {
            self.speed.add(self.worked, begin.elapsed());
        }
    }

    /// Leaves all tasks to the other workers. Without others the scheduler ends.
    fn lose(mut self, error: Error) {
        let lost = format!("{} does not work any more: {error}", self.setup.device);
        tracing::error!("{lost}");
        let is_last = !self.shared.has_others(self.number);
        let error = Error::Device(lost);
        for active in std::mem::take(&mut self.tasks) {
            if let Err(mut active) = self.shared.pass_on(self.number, active) {
                self.shared.end(&mut active.task, failed(&error));
            }
        }
        if is_last {
            self.shared.fail(error);
        }
    }

    /// Reads the weights of the model.
    fn load(&mut self) -> Result<()> {
        let start = Instant::now();
        self.room = None;
        self.lanes.clear();
        self.shared.publish_loading(self.number, &self.model);
        let Self { shared, model, tasks, engines, .. } = self;
        let own = tasks.iter().filter(|active| Arc::ptr_eq(&active.task.model, model));
        let stops: Vec<Stop> = own.map(|active| Stop::of(&active.task, shared)).collect();
        let is_new = engines.switch(model, &mut |event| {
            if let Event::Begin(stage) = event {
                let own = tasks.iter_mut().filter(|active| Arc::ptr_eq(&active.task.model, model));
                own.for_each(|active| active.task.listener.tell(News::Stage(stage)));
            }
            // Weights that no task waits for any more are not read.
            let is_unwanted = !stops.is_empty() && stops.iter().all(Stop::is_there);
            if is_unwanted || shared.is_stopping() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let own = tasks.iter_mut().filter(|active| Arc::ptr_eq(&active.task.model, model));
        own.for_each(|active| active.task.listener.tell(News::Loaded));
        let Some(engine) = engines.current_mut() else { return Ok(()) };
        if is_new
            && let Some(texts) = &shared.options.texts
            && !engine.share_texts(texts.clone())
        {
            tracing::warn!("encoded texts are not shared: the model has no digest");
        }
        let Defaults { width, height, .. } = model.defaults();
        let max_batch = match shared.options.max_batch {
            Some(count) => MostImages::Count(count),
            None if engine.is_on_gpu() => MostImages::Pixels(IMAGES_GPU * (width * height).max(LEAST_PIXELS)),
            None => MostImages::Count(1),
        };
        let is_unwanted = || shared.is_stopping() || (!stops.is_empty() && stops.iter().all(Stop::is_there));
        if is_new {
            warm::make(engine, model, &shared.options.warm, is_unwanted);
        }
        let workers = shared.options.setups.len().max(1);
        self.policy = Policy::new(max_batch, shared.options.max_per_client.div_ceil(workers));
        self.stays_until = Instant::now() + STAY * start.elapsed();
        self.shared.publish_ready(self.number, &self.engines);
        let device = self.setup.device;
        let done = if is_new { "loaded" } else { "goes on" };
        tracing::info!(model = self.model.name(), %device, seconds = start.elapsed().as_secs_f64(), ?max_batch, "{done}");
        Ok(())
    }

    /// Does the next errand. It is dropped where no model can be loaded.
    fn run_errand(&mut self) {
        let Some(errand) = self.shared.take_errand() else { return };
        if self.engines.current().is_none()
            && let Err(error) = self.load()
        {
            tracing::error!("{error}");
        }
        if let Some(engine) = self.engines.current_mut() {
            errand(engine);
        }
    }

    /// How long a step waits for a batch to fill: if nothing runs, the images that wait do not fill a batch, and the oldest
    /// came less than the option's time ago.
    fn delay(&self) -> Option<Duration> {
        let waiting: usize = self.tasks.iter().map(|active| active.task.job.images()).sum();
        let runs = self.tasks.iter().any(Active::has_started);
        let oldest = &self.tasks.iter().min_by_key(|active| active.task.submitted)?.task;
        let full = self.policy.max_images().of_size([oldest.job.width, oldest.job.height]);
        if runs || waiting >= full {
            return None;
        }
        self.shared.options.max_delay.checked_sub(oldest.submitted.elapsed()).filter(|left| !left.is_zero())
    }

    /// Does what the tasks' controls ask for.
    fn obey(&mut self) {
        let (stopping, now) = (self.shared.is_stopping(), Instant::now());
        let mut place = 0;
        while let Some(active) = self.tasks.get(place) {
            let control = active.task.control.clone();
            if stopping || control.is_canceled() {
                self.end(place, End::Canceled);
            } else if active.has_expired(now) {
                let limit = active.task.limit.unwrap_or_default();
                self.end(place, End::Expired(limit));
            } else if control.is_finishing() {
                let end = if active.has_started() { End::Done } else { End::Canceled };
                let decoded = (0..active.parts.len()).try_for_each(|_| self.finish_early(place));
                match decoded {
                    Err(error) => self.end(place, self.end_of(place, &error)),
                    // What is being decoded comes first.
                    Ok(()) if self.tasks[place].decoding > 0 => {
                        let active = &mut self.tasks[place];
                        (active.finished, active.next) = (active.task.job.batch_count, active.task.job.batch_count);
                        place += 1;
                    }
                    Ok(()) => self.end(place, end),
                }
            } else if !active.parts.is_empty() && control.take_skip() {
                match self.finish_early(place) {
                    Err(error) => self.end(place, self.end_of(place, &error)),
                    Ok(()) if self.tasks[place].is_done() => self.end(place, End::Done),
                    Ok(()) => {}
                }
            } else {
                place += 1;
            }
        }
    }

    /// Whether a task is of the model that is loaded.
    fn is_own(&self, active: &Active) -> bool {
        Arc::ptr_eq(&active.task.model, &self.model)
    }

    /// Whether tasks of another model wait, and the loaded one has had its time, or one of them has waited for as long as it may:
    /// what runs is finished, nothing starts.
    pub(super) fn is_leaving(&self) -> bool {
        let others = self.tasks.iter().filter(|active| !self.is_own(active)).map(|active| active.task.submitted);
        must_leave(Instant::now(), self.stays_until, self.shared.options.max_wait, others)
    }

    /// Loads another model if it is its turn.
    fn take_turn(&mut self) {
        let has_own = self.tasks.iter().any(|active| self.is_own(active));
        let decodes = self.tasks.iter().any(|active| active.decoding > 0);
        if !self.lanes.is_empty() || decodes || (has_own && self.engines.current().is_some() && !self.is_leaving()) {
            return;
        }
        let others = self.tasks.iter().filter(|active| self.engines.current().is_none() || !self.is_own(active));
        let Some(oldest) = others.min_by_key(|active| active.arrived) else { return };
        self.model = oldest.task.model.clone();
        if let Err(error) = self.load() {
            while let Some(place) = self.tasks.iter().position(|active| self.is_own(active)) {
                self.give_up(place, &error);
            }
        }
    }

    /// A task cannot be made here: another worker makes it if that may help and none of its images is done; otherwise it has
    /// failed.
    pub(super) fn give_up(&mut self, place: usize, error: &Error) {
        if !error.is_of_device() {
            return self.end(place, self.end_of(place, error));
        }
        if self.engines.current().is_some_and(|engine| !engine.is_alive()) {
            self.lost.get_or_insert(Error::Device(error.to_string()));
        }
        let active = self.take_out(place);
        match self.shared.pass_on(self.number, active) {
            Ok(()) => tracing::warn!("{} cannot run a job, which another device gets: {error}", self.setup.device),
            Err(mut active) => self.shared.end(&mut active.task, failed(error)),
        }
    }

    /// How a task ends that failed so: one that was interrupted was canceled, or its time is over.
    fn end_of(&self, place: usize, error: &Error) -> End {
        let task = self.tasks.get(place).filter(|active| active.has_expired(Instant::now()));
        match (error, task.and_then(|active| active.task.limit)) {
            (Error::Interrupted, Some(limit)) => End::Expired(limit),
            (Error::Interrupted, None) => End::Canceled,
            _ => failed(error),
        }
    }

    /// Ends a task wherever it is.
    pub(super) fn end(&mut self, place: usize, end: End) {
        let mut active = self.take_out(place);
        self.shared.end(&mut active.task, end);
    }

    /// Takes a task out, with its batches that run.
    fn take_out(&mut self, place: usize) -> Active {
        let active = self.tasks.remove(place);
        for part in &active.parts {
            if let Some(running) = self.lanes.running(part.lane) {
                running.leave(part.group);
            }
            self.room = None;
        }
        active
    }

    /// Ends what failed, and reports positions and numbers.
    fn publish(&mut self) {
        while let Some(place) = self.tasks.iter().position(|active| active.failed.is_some()) {
            if let Some(error) = self.tasks[place].failed.take() {
                self.give_up(place, &error);
            }
        }
        let Self { lanes, tasks, .. } = self;
        let wanted: Vec<usize> = tasks.iter().map(|active| lanes.of(&active.task.job)).collect();
        lanes.retain(|lane| wanted.contains(&lane));
        let waiting = tasks.iter().filter(|active| !active.has_started()).count();
        let images = tasks.iter().map(|active| active.parts.len() * active.task.job.batch_size).sum();
        let load = Load { waiting, running: tasks.len() - waiting, images, seconds: 0.0 };
        let work = tasks.iter().map(Active::remaining).sum();
        self.shared.publish(self.number, load, (work, self.speed), &self.engines);
        let waiting: Vec<usize> = (0..tasks.len()).filter(|i| !tasks[*i].has_started()).collect();
        let place = |i: &usize| (tasks[*i].task.client.as_str(), tasks[*i].task.control.place());
        let order = in_order(&waiting.iter().map(place).collect::<Vec<_>>());
        for (position, i) in order.into_iter().enumerate() {
            tasks[waiting[i]].tell_position(position);
        }
    }
}

/// Whether the loaded model leaves: tasks of others came at the times `others`, and it has had its time, or one of them has waited for
/// as long as it may.
fn must_leave(
    now: Instant,
    stays_until: Instant,
    max_wait: Option<Duration>,
    mut others: impl Iterator<Item = Instant>,
) -> bool {
    others.any(|came| now >= stays_until || max_wait.is_some_and(|most| now.saturating_duration_since(came) >= most))
}

pub(super) fn failed(error: &Error) -> End {
    End::Failed { message: error.to_string(), is_usage: error.is_usage() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_leaves_after_its_time_or_when_another_has_waited_long_enough() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let leaves = |now, most: Option<u64>, others: &[u64]| {
            must_leave(at(now), at(20), most.map(Duration::from_secs), others.iter().map(|&came| at(came)))
        };
        assert!(!leaves(30, None, &[]), "no one else waits");
        assert!(!leaves(19, None, &[0]) && leaves(20, None, &[19]));
        assert!(!leaves(9, Some(10), &[0, 5]) && leaves(10, Some(10), &[5, 0]));
        assert!(leaves(20, Some(100), &[0]), "the limit never makes them wait longer");
    }
}
