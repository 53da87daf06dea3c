//! The scheduler as others see it: a bounded queue in front of a thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kiln_engine::{Engine, Error, Result, Setup, TextStore};
use kiln_models::ModelFolder;
use parking_lot::{Condvar, Mutex};

use super::task::{End, News, Task};
use super::worker::Worker;
use crate::metrics::Metrics;

/// How the scheduler runs.
#[derive(Clone)]
pub struct SchedulerOptions {
    /// The most images of one step. `None` is for 1 on the CPU, whose cores one image keeps busy, and 8 on a GPU.
    pub max_batch: Option<usize>,
    /// The most tasks of one client that run at once while others wait; 0 is for no limit.
    pub max_per_client: usize,
    /// How long a step waits for company where nothing runs and the batch is not full.
    pub max_delay: Duration,
    /// A store of encoded texts that servers share.
    pub texts: Option<Arc<dyn TextStore>>,
    /// The most tasks that wait.
    pub queue: usize,
    /// How models run.
    pub setup: Setup,
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

/// What the scheduler does at the moment.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Load {
    /// Tasks that wait.
    pub waiting: usize,
    /// Tasks that have started and are not done.
    pub running: usize,
    /// Images that took part in the last step.
    pub images: usize,
}

/// A thread that runs tasks.
pub struct Scheduler {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// What the thread and its callers share.
pub(super) struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    pub(super) options: SchedulerOptions,
    pub(super) metrics: Arc<Metrics>,
}

#[derive(Default)]
struct Queue {
    incoming: VecDeque<Task>,
    errands: VecDeque<Errand>,
    load: Load,
    /// Whether the first model's weights were read.
    ready: bool,
    /// New tasks are refused; those that were taken are finished.
    draining: bool,
    /// All tasks are canceled.
    stopping: bool,
    /// The model whose weights are loaded.
    loaded: Option<Arc<ModelFolder>>,
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

impl Scheduler {
    /// Starts the thread, which loads `first` at once.
    ///
    /// # Errors
    /// [`Error::Device`] where the system gives no thread.
    pub fn start(options: SchedulerOptions, first: Arc<ModelFolder>, metrics: Arc<Metrics>) -> Result<Self> {
        let shared = Arc::new(Shared { queue: Mutex::default(), wake: Condvar::new(), options, metrics });
        let worker = Worker::new(shared.clone(), first);
        let thread = std::thread::Builder::new().name("steps".into()).spawn(move || worker.run());
        let thread = thread.map_err(|error| Error::Device(format!("the thread of the steps: {error}")))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Takes a task.
    ///
    /// # Errors
    /// A [`Refusal`]; the task is dropped and heard nothing.
    pub fn submit(&self, mut task: Task) -> std::result::Result<(), Refusal> {
        let mut queue = self.shared.queue.lock();
        if queue.draining || self.has_ended() {
            return Err(Refusal::Stopping);
        }
        if queue.load.waiting >= self.shared.options.queue {
            let seconds = queue.pace.mean.unwrap_or(1.0).clamp(1.0, 60.0);
            return Err(Refusal::Full(Duration::from_secs_f64(seconds)));
        }
        task.listener.tell(News::Position(queue.load.waiting));
        queue.load.waiting += 1;
        queue.incoming.push_back(task);
        self.shared.wake.notify_one();
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
        if queue.errands.len() >= self.shared.options.queue {
            return Err(Refusal::Full(Duration::from_secs(1)));
        }
        queue.errands.push_back(errand);
        self.shared.wake.notify_one();
        Ok(())
    }

    /// Whether tasks are taken and the first model's weights are there.
    pub fn is_ready(&self) -> bool {
        let queue = self.shared.queue.lock();
        queue.ready && !queue.draining && !self.has_ended()
    }

    /// Whether new tasks are refused.
    pub fn is_draining(&self) -> bool {
        self.shared.queue.lock().draining
    }

    /// The model whose weights are loaded.
    pub fn loaded(&self) -> Option<Arc<ModelFolder>> {
        self.shared.queue.lock().loaded.clone()
    }

    /// Refuses new tasks from now on. Those that were taken are finished.
    pub fn drain(&self) {
        self.shared.queue.lock().draining = true;
        self.shared.wake.notify_all();
    }

    /// The same, and cancels all tasks.
    pub fn stop(&self) {
        let mut queue = self.shared.queue.lock();
        (queue.draining, queue.stopping) = (true, true);
        self.shared.wake.notify_all();
    }

    /// Whether the thread has ended: after [`Self::drain`], or by a failure.
    pub fn has_ended(&self) -> bool {
        self.thread.lock().as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Waits for the end of the thread, after [`Self::drain`] or [`Self::stop`].
    ///
    /// # Errors
    /// Why the first model could not be loaded, and [`Error::Device`] where the thread failed.
    pub fn join(&self) -> Result<()> {
        let thread = self.thread.lock().take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            return Err(Error::Device("the thread of the steps has failed".into()));
        }
        self.shared.queue.lock().failure.take().map_or(Ok(()), Err)
    }
}

impl Shared {
    /// The tasks that came; waits for the first one where `is_idle`. `None` where nothing is to be done any more.
    pub(super) fn take(&self, is_idle: bool) -> Option<Vec<Task>> {
        let mut queue = self.queue.lock();
        while is_idle && queue.incoming.is_empty() && queue.errands.is_empty() {
            if queue.draining {
                return None;
            }
            self.wake.wait(&mut queue);
        }
        Some(queue.incoming.drain(..).collect())
    }

    /// The next errand.
    pub(super) fn take_errand(&self) -> Option<Errand> {
        self.queue.lock().errands.pop_front()
    }

    /// Waits until something comes, at most for this time.
    pub(super) fn wait(&self, most: Duration) {
        let mut queue = self.queue.lock();
        if queue.incoming.is_empty() && queue.errands.is_empty() && !queue.draining {
            self.wake.wait_for(&mut queue, most);
        }
    }

    /// Whether all tasks are canceled.
    pub(super) fn is_stopping(&self) -> bool {
        self.queue.lock().stopping
    }

    /// Says what the scheduler does. Tasks that came meanwhile wait, too.
    pub(super) fn publish(&self, load: Load) {
        let mut queue = self.queue.lock();
        queue.load = Load { waiting: load.waiting + queue.incoming.len(), ..load };
        self.metrics.load(queue.load);
    }

    /// Says which model is loaded.
    pub(super) fn publish_model(&self, model: Option<Arc<ModelFolder>>) {
        let mut queue = self.queue.lock();
        queue.ready |= model.is_some();
        queue.loaded = model;
    }

    /// Says that the first model cannot be loaded: the scheduler ends.
    pub(super) fn fail(&self, error: Error) {
        let mut queue = self.queue.lock();
        queue.draining = true;
        queue.incoming.clear();
        queue.errands.clear();
        queue.failure = Some(error);
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
