//! The scheduler as others see it: a bounded queue in front of threads, one for each device.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kiln_engine::{Engine, Engines, Error, MemoryNeed, Result, Setup, TextStore};
use kiln_models::ModelFolder;
use parking_lot::{Condvar, Mutex};

use super::active::Active;
use super::seats::{self, Seat};
use super::speed::Speed;
use super::task::{End, News, Task};
use super::worker::{Worker, failed};
use crate::metrics::{EngineNumbers, Metrics};

/// How the scheduler runs.
#[derive(Clone)]
pub struct SchedulerOptions {
    /// The most images of one step. `None` is for 1 on the CPU, whose cores one image keeps busy, and on a GPU for the pixels of 8
    /// images of the model's size.
    pub max_batch: Option<usize>,
    /// The most tasks of one client that run at once while others wait, divided among the engines; 0 is for no limit.
    pub max_per_client: usize,
    /// How long a step waits for a batch to fill if nothing runs.
    pub max_delay: Duration,
    /// How long a task waits at most behind tasks of another model that have not started; `None` if only the time that the model took
    /// to load decides.
    pub max_wait: Option<Duration>,
    /// The most models in the memory of a device at once; `None` for as many as fit.
    pub max_loaded: Option<usize>,
    /// Sizes, width and height, of which an image is made when a model was loaded, so that the first request of this size is as
    /// fast as others.
    pub warm: Vec<(usize, usize)>,
    /// A store of encoded texts that servers share.
    pub texts: Option<Arc<dyn TextStore>>,
    /// The most errands that wait.
    pub errands: usize,
    /// How models run: an engine for each, on a thread of its own.
    pub setups: Vec<Setup>,
}

/// Work for the engine that is no task: it is done between two steps.
pub type Errand = Box<dyn FnOnce(&mut Engine) + Send>;

/// Why a task is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The queue is full. A task is finished about this often.
    Full(Duration),
    /// The scheduler ends.
    Stopping,
}

/// The current load of the scheduler.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Tasks that wait.
    pub waiting: usize,
    /// Tasks that have started and are not done.
    pub running: usize,
    /// Images that took part in the last step.
    pub images: usize,
    /// An estimate of the seconds to the end of all tasks, by the speed of the latest steps; 0 before the first one.
    pub seconds: f64,
}

/// Threads that run tasks.
pub struct Scheduler {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    arrivals: AtomicU64,
}

/// State shared by the threads and their callers.
pub(super) struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    /// All tasks are canceled. Kernels ask within their calls, so that it needs no lock.
    stopping: AtomicBool,
    pub(super) options: SchedulerOptions,
    pub(super) metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Queue {
    /// The workers, by their numbers.
    seats: Vec<Seat>,
    errands: VecDeque<Errand>,
    /// Whether the first model's weights were read.
    ready: bool,
    /// New tasks are refused; those that were taken are finished.
    draining: bool,
    /// Why the first model could not be loaded.
    failure: Option<Error>,
    /// When a task ended last, and the mean time between two ends.
    pace: Pace,
}

/// How often tasks end.
#[derive(Debug, Clone, Copy, Default)]
struct Pace {
    last: Option<Instant>,
    mean: Option<f64>,
}

impl Pace {
    /// The weight of the newest time in the mean.
    const WEIGHT: f64 = 0.2;

    fn ended(&mut self, now: Instant) {
        if let Some(last) = self.last.replace(now) {
            let seconds = (now - last).as_secs_f64();
            self.mean = Some(self.mean.map_or(seconds, |mean| mean + Self::WEIGHT * (seconds - mean)));
        }
    }
}

impl Queue {
    /// The load of all workers.
    fn load(&self) -> Load {
        let sum = |of: fn(&Seat) -> usize| self.seats.iter().map(of).sum();
        let (work, speed): (usize, f64) = (
            sum(Seat::all_work),
            self.seats.iter().filter(|seat| !seat.is_gone).map(|seat| seat.speed.per_second()).sum(),
        );
        Load {
            waiting: sum(Seat::waiting),
            running: sum(|seat| seat.load.running),
            images: sum(|seat| seat.load.images),
            seconds: if speed > 0.0 { work as f64 / speed } else { 0.0 },
        }
    }

    /// Whether no worker is busy, so that nothing comes from a worker any more.
    fn is_quiet(&self) -> bool {
        self.seats.iter().all(|seat| seat.is_gone || (seat.is_idle && seat.inbox.is_empty()))
    }
}

impl Scheduler {
    /// Starts a thread for each of the setups, of which there is at least one. They load `first` at once.
    ///
    /// # Errors
    /// [`Error::Device`] where the system gives no thread.
    pub fn start(options: SchedulerOptions, first: Arc<ModelFolder>, metrics: Arc<Metrics>) -> Result<Self> {
        let setups = options.setups.clone();
        let queue = Queue { seats: setups.iter().map(|_| Seat::default()).collect(), ..Queue::default() };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            wake: Condvar::new(),
            stopping: AtomicBool::new(false),
            options,
            metrics,
        });
        let this = Self { shared, threads: Mutex::default(), arrivals: AtomicU64::new(0) };
        for (number, setup) in setups.into_iter().enumerate() {
            let (shared, first) = (this.shared.clone(), first.clone());
            let run = move || {
                let _seat = TakenSeat { shared: &shared, number };
                Worker::new(shared.clone(), number, setup, first).run();
            };
            let thread = std::thread::Builder::new().name(format!("steps-{number}")).spawn(run);
            match thread {
                Ok(thread) => this.threads.lock().push(thread),
                Err(error) => {
                    this.stop();
                    return Err(Error::Device(format!("the thread of the steps: {error}")));
                }
            }
        }
        Ok(this)
    }

    /// Takes a task, where fewer than `places` wait.
    ///
    /// # Errors
    /// A [`Refusal`]; the task is dropped and heard nothing.
    pub fn submit(&self, task: Task, places: usize) -> std::result::Result<(), Refusal> {
        let active = Active::new(task, self.arrivals.fetch_add(1, Ordering::Relaxed));
        let mut queue = self.shared.queue.lock();
        if queue.draining || self.has_ended() {
            return Err(Refusal::Stopping);
        }
        let waiting = queue.load().waiting;
        if waiting >= places {
            let seconds = queue.pace.mean.unwrap_or(1.0).clamp(1.0, 60.0);
            return Err(Refusal::Full(Duration::from_secs_f64(seconds)));
        }
        match active {
            Ok(mut active) => {
                let Some(worker) = seats::choose(&queue.seats, &active) else { return Err(Refusal::Stopping) };
                active.task.listener.tell(News::Position(waiting));
                queue.seats[worker].inbox.push_back(active);
                self.shared.wake.notify_all();
            }
            Err(refused) => {
                drop(queue);
                let (mut task, error) = *refused;
                self.shared.end(&mut task, failed(&error));
            }
        }
        Ok(())
    }

    /// Takes an errand, which is done between two steps: one at a time, in their order.
    ///
    /// # Errors
    /// A [`Refusal`]; the errand is dropped.
    pub fn run(&self, errand: Errand) -> std::result::Result<(), Refusal> {
        let mut queue = self.shared.queue.lock();
        if queue.draining || self.has_ended() {
            return Err(Refusal::Stopping);
        }
        if queue.errands.len() >= self.shared.options.errands {
            return Err(Refusal::Full(Duration::from_secs(1)));
        }
        queue.errands.push_back(errand);
        self.shared.wake.notify_all();
        Ok(())
    }

    /// Whether tasks are taken and the first model's weights are there.
    pub fn is_ready(&self) -> bool {
        let queue = self.shared.queue.lock();
        queue.ready && !queue.draining && !self.has_ended()
    }

    /// The memory that the next images of each worker with a model need.
    pub fn memory_needs(&self) -> Vec<MemoryNeed> {
        let queue = self.shared.queue.lock();
        queue.seats.iter().filter(|seat| !seat.is_gone).filter_map(|seat| seat.need.clone()).collect()
    }

    /// Whether new tasks are refused.
    pub fn is_draining(&self) -> bool {
        self.shared.queue.lock().draining
    }

    /// Whether all tasks are canceled.
    pub fn is_stopping(&self) -> bool {
        self.shared.is_stopping()
    }

    /// Whether an engine has the weights of a model.
    pub fn has_loaded(&self, model: &Arc<ModelFolder>) -> bool {
        let queue = self.shared.queue.lock();
        queue.seats.iter().any(|seat| seat.has_loaded(model))
    }

    /// Refuses new tasks from now on. Those that were taken are finished.
    pub fn drain(&self) {
        self.shared.queue.lock().draining = true;
        self.shared.wake.notify_all();
    }

    /// The same, and cancels all tasks. Returns how many there are.
    pub fn stop(&self) -> usize {
        let mut queue = self.shared.queue.lock();
        queue.draining = true;
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.wake.notify_all();
        let Load { waiting, running, .. } = queue.load();
        waiting + running
    }

    /// Whether all threads have ended: after [`Self::drain`], or by a failure.
    pub fn has_ended(&self) -> bool {
        self.threads.lock().iter().all(JoinHandle::is_finished)
    }

    /// Waits for the end of the threads, after [`Self::drain`] or [`Self::stop`].
    ///
    /// # Errors
    /// Why the first model could not be loaded, and [`Error::Device`] where a thread failed or no device works any more.
    pub fn join(&self) -> Result<()> {
        let threads = std::mem::take(&mut *self.threads.lock());
        let has_failed = threads.into_iter().map(JoinHandle::join).fold(false, |failed, ended| failed | ended.is_err());
        if has_failed {
            return Err(Error::Device("the thread of the steps has failed".into()));
        }
        self.shared.queue.lock().failure.take().map_or(Ok(()), Err)
    }
}

/// The seat of a worker while its thread runs, however that ends.
struct TakenSeat<'a> {
    shared: &'a Shared,
    number: usize,
}

impl Drop for TakenSeat<'_> {
    fn drop(&mut self) {
        self.shared.leave(self.number);
    }
}

impl Shared {
    /// The tasks that came for a worker; waits for the first one if it has nothing else to do. `None` if no more work will
    /// come.
    pub(super) fn take(&self, number: usize, has_nothing: bool) -> Option<Vec<Active>> {
        let mut queue = self.queue.lock();
        while has_nothing && queue.seats[number].inbox.is_empty() && queue.errands.is_empty() {
            queue.seats[number].is_idle = true;
            if queue.draining && queue.is_quiet() {
                self.wake.notify_all();
                return None;
            }
            self.wake.wait(&mut queue);
        }
        let seat = &mut queue.seats[number];
        seat.is_idle = false;
        seat.load.waiting += seat.inbox.len();
        Some(seat.inbox.drain(..).collect())
    }

    /// Gives a task that a worker could not make to another one. Returns it if there is none.
    pub(super) fn pass_on(&self, number: usize, mut active: Active) -> std::result::Result<(), Box<Active>> {
        active.tried.push(number);
        let mut active = active.restarted()?;
        let mut queue = self.queue.lock();
        let Some(worker) = seats::choose(&queue.seats, &active) else { return Err(Box::new(active)) };
        active.task.listener.tell(News::Position(queue.seats[worker].waiting()));
        queue.seats[worker].inbox.push_back(active);
        self.wake.notify_all();
        Ok(())
    }

    /// Has an idle worker take over a task of a busy one.
    pub(super) fn help(&self, tasks: &mut Vec<Active>) {
        let mut queue = self.queue.lock();
        if let Some((place, worker)) = seats::help(&queue.seats, tasks) {
            queue.seats[worker].inbox.push_back(tasks.remove(place));
            self.wake.notify_all();
        }
    }

    /// A worker ends: others get what it has not taken. Tasks that no one takes end.
    fn leave(&self, number: usize) {
        let mut queue = self.queue.lock();
        let seat = &mut queue.seats[number];
        (seat.is_gone, seat.is_idle) = (true, false);
        seat.set_loaded(std::iter::empty());
        seat.set_load(Load::default(), 0);
        let rest: Vec<Active> = seat.inbox.drain(..).collect();
        self.wake.notify_all();
        drop(queue);
        for active in rest {
            if let Err(mut active) = self.pass_on(number, active) {
                self.end(&mut active.task, End::Canceled);
            }
        }
    }

    /// Whether a worker besides this one is there.
    pub(super) fn has_others(&self, number: usize) -> bool {
        self.queue.lock().seats.iter().enumerate().any(|(i, seat)| i != number && !seat.is_gone)
    }

    /// The next errand.
    pub(super) fn take_errand(&self) -> Option<Errand> {
        self.queue.lock().errands.pop_front()
    }

    /// Waits until something comes for a worker, at most for this time.
    pub(super) fn wait(&self, number: usize, most: Duration) {
        let mut queue = self.queue.lock();
        if queue.seats[number].inbox.is_empty() && queue.errands.is_empty() && !queue.draining {
            self.wake.wait_for(&mut queue, most);
        }
    }

    /// Whether all tasks are canceled.
    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Says what a worker does, with the work of its tasks ([`Active::remaining`]) and its speed, and which models it has loaded.
    pub(super) fn publish(&self, number: usize, load: Load, (work, speed): (usize, Speed), engines: &Engines) {
        let numbers = EngineNumbers::of(engines); // asks the GPU's driver
        let need = engines.current().and_then(Engine::memory_need);
        let mut queue = self.queue.lock();
        let seat = &mut queue.seats[number];
        seat.set_load(load, work);
        seat.speed = speed;
        seat.set_loaded(engines.models());
        seat.numbers = numbers.unwrap_or(seat.numbers);
        seat.need = need;
        self.metrics.load(queue.load());
        self.metrics.engines(queue.seats.iter().map(|seat| seat.numbers));
    }

    /// Says which model a worker loads.
    pub(super) fn publish_loading(&self, number: usize, model: &Arc<ModelFolder>) {
        self.queue.lock().seats[number].loads(model);
    }

    /// Says that a worker takes tasks, with the models that it has loaded.
    pub(super) fn publish_ready(&self, number: usize, engines: &Engines) {
        let need = engines.current().and_then(Engine::memory_need);
        let mut queue = self.queue.lock();
        queue.ready = true;
        queue.seats[number].need = need;
        queue.seats[number].set_loaded(engines.models());
    }

    /// Says that the first model cannot be loaded, or that no device works: the scheduler ends.
    pub(super) fn fail(&self, error: Error) {
        let mut queue = self.queue.lock();
        queue.draining = true;
        queue.seats.iter_mut().for_each(|seat| seat.inbox.clear());
        queue.errands.clear();
        queue.failure.get_or_insert(error);
        self.wake.notify_all();
    }

    /// Reports its end to a task.
    pub(super) fn end(&self, task: &mut Task, end: End) {
        self.queue.lock().pace.ended(Instant::now());
        self.metrics.task_ended(&end);
        task.listener.tell(News::End(end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pace_is_a_moving_mean() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.ended(start);
        assert_eq!(pace.mean, None);
        for i in 1..=3 {
            pace.ended(start + Duration::from_secs(2 * i));
        }
        assert_eq!(pace.mean, Some(2.0));
        pace.ended(start + Duration::from_secs(16));
        assert!((pace.mean.unwrap() - 3.6).abs() < 1e-9, "{pace:?}");
    }
}
