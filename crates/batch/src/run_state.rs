//! State shared by the engines of a run: pending, finished and failed images, and the receiver of events.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_engine::{Error, Result, proceed};
use kiln_mempool::ProcessMemory;

use super::events::{BatchEvent, BatchProgress};
use super::journal::Line;
use super::saver::{Saved, Savers};
use super::shared_journal::SharedJournal;
use super::todos::{State, Todo};
use crate::error::Error as BatchError;

/// Who listens, and may stop the run. Where there are several engines, each calls it from its own thread, one at a time.
pub(super) type Watch<'a> = dyn FnMut(BatchEvent<'_>) -> ControlFlow<()> + Send + 'a;

/// The parts of a run besides the engines.
pub(super) struct RunState<'a, 'w> {
    pub(super) todos: Vec<Todo>,
    pub(super) journal: Arc<SharedJournal>,
    pub(super) savers: Savers,
    pub(super) watch: &'a mut Watch<'w>,
    pub(super) start: Instant,
    /// When the first image was begun: loading counts in no speed.
    pub(super) first_image: Option<Instant>,
    /// Images of this run.
    pub(super) made: usize,
    /// How long saving them took.
    pub(super) saved: Duration,
    /// Images of all runs.
    pub(super) done: usize,
    pub(super) failed: usize,
    /// Memory in use on each engine's GPU, in bytes.
    pub(super) gpu_memory: Vec<Option<u64>>,
    /// The models whose loading was reported.
    models: HashSet<String>,
    /// Whether an engine has ended the run: the others stop at their next event.
    pub(super) stopping: bool,
    /// The error that ended the run though it is no job's fault, such as a full disk. Callers get
    /// [`kiln_engine::Error::Interrupted`], which no job is blamed for.
    pub(super) stopped_by: Option<BatchError>,
}

impl<'a, 'w> RunState<'a, 'w> {
    /// Nothing is made yet in this run; `done` and `failed` are those of runs before.
    pub(super) fn new(
        todos: Vec<Todo>,
        journal: Arc<SharedJournal>,
        savers: Savers,
        watch: &'a mut Watch<'w>,
        [done, failed]: [usize; 2],
        engines: usize,
    ) -> Self {
        Self {
            todos,
            journal,
            savers,
            watch,
            start: Instant::now(),
            first_image: None,
            made: 0,
            saved: Duration::ZERO,
            done,
            failed,
            gpu_memory: vec![None; engines],
            models: HashSet::new(),
            stopping: false,
            stopped_by: None,
        }
    }

    /// Ends the run with an error of its own.
    pub(super) fn stop(&mut self, error: BatchError) -> Error {
        match error {
            BatchError::Engine(Error::Interrupted) => {}
            error => drop(self.stopped_by.get_or_insert(error)),
        }
        Error::Interrupted
    }

    /// Notes when the first image is begun, and the memory of an engine's GPU. Returns the time since the start.
    pub(super) fn begin_images(&mut self, engine: usize, gpu_memory: Option<u64>) -> Duration {
        self.first_image.get_or_insert_with(Instant::now);
        if let Some(place) = self.gpu_memory.get_mut(engine) {
            *place = gpu_memory;
        }
        self.start.elapsed()
    }

    /// Says once that a model is being loaded.
    pub(super) fn tell_model(&mut self, name: &str) -> Result<()> {
        if self.models.insert(name.into()) { self.tell(BatchEvent::Model(name)) } else { Ok(()) }
    }

    /// Takes the images that were saved.
    pub(super) fn look(&mut self) -> Result<()> {
        let news = self.savers.news();
        self.record(news)
    }

    /// Takes note of what was saved or could not be: of all of it, also where the run ends with that.
    pub(super) fn record(&mut self, news: Vec<Saved>) -> Result<()> {
        news.into_iter().map(|saved| self.record_one(saved)).fold(Ok(()), Result::and)
    }

    fn record_one(&mut self, Saved { id, result }: Saved) -> Result<()> {
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
                Ok(())
            }
            Err(error) if is_of_the_job(&error) => self.fail(id, &error.to_string()),
            Err(error) => Err(self.stop(error)),
        }
    }

    /// Records that an image cannot be made.
    pub(super) fn fail(&mut self, id: usize, error: &str) -> Result<()> {
        let line = Line::Failed { failed: self.todos[id].task.key.clone(), error: error.into() };
        self.journal.append(line).map_err(|error| self.stop(error))?;
        self.todos[id].state = State::Failed(error.into());
        self.failed += 1;
        let progress = self.progress();
        let task = &self.todos[id].task;
        let _ = (self.watch)(BatchEvent::Failed { number: task.number, line: task.line, error, progress });
        Ok(())
    }

    /// Sends an event to the caller, who may stop the run. Where another engine has ended the run, this one gets [`Error::Interrupted`].
    pub(super) fn tell(&mut self, event: BatchEvent<'_>) -> Result<()> {
        if self.stopping {
            return Err(Error::Interrupted);
        }
        proceed((self.watch)(event))
    }

    fn progress(&self) -> BatchProgress {
        let Self { done, failed, .. } = *self;
        let (all, seconds) = (self.todos.len(), self.first_image.unwrap_or(self.start).elapsed().as_secs_f64());
        let images_per_second = self.made as f64 / seconds.max(1e-9);
        let left = (all - done - failed) as f64;
        BatchProgress {
            done,
            failed,
            all,
            images_per_second,
            seconds_left: if self.made > 0 { left / images_per_second } else { 0.0 },
            memory: ProcessMemory::now().unwrap_or_default().resident,
            card_memory: self.gpu_memory.iter().flatten().copied().reduce(|a, b| a + b),
        }
    }
}

/// Whether an image that could not be saved is at fault itself. A full disk or a folder that is gone is not of its
/// making: the next image would meet it too, and later, when there is room, this one can be made.
fn is_of_the_job(error: &BatchError) -> bool {
    use std::io::ErrorKind::{AlreadyExists, InvalidFilename, IsADirectory, NotADirectory, PermissionDenied};
    match error {
        BatchError::Engine(Error::Files(kiln_files::Error::Write { source, .. })) => {
            matches!(source.kind(), AlreadyExists | InvalidFilename | IsADirectory | NotADirectory | PermissionDenied)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    #[test]
    fn trouble_of_the_disk_is_no_job_s_fault() {
        let write = |kind: ErrorKind| BatchError::write("a.png".as_ref())(kind.into());
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge, ErrorKind::NotFound] {
            assert!(!is_of_the_job(&write(kind)), "{kind:?}");
        }
        // No space, a read-only file system, an error of the device, a stale handle of a network file system.
        for number in [28, 30, 5, 116] {
            let error = std::io::Error::from_raw_os_error(number);
            assert!(
                !is_of_the_job(&BatchError::write("a.png".as_ref())(error)) || !cfg!(target_os = "linux"),
                "{number}"
            );
        }
        assert!(
            is_of_the_job(&write(ErrorKind::PermissionDenied))
                && is_of_the_job(&kiln_files::Error::Exists("a.png".into()).into())
        );
    }
}
