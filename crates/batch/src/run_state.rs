//! The state of a run of a set: what is pending, made and failed, and who gets its events.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kiln_engine::pipeline::{DecodedImage, Latents};
use kiln_engine::{Error, Event, Result, Stage, proceed};
use kiln_mempool::ProcessMemory;

use super::events::{BatchEvent, BatchProgress};
use super::image_task::{ImageTask, Unsaved};
use super::journal::{Journal, Line};
use super::overlap_worker::{Decoded, Done, OverlapWorker};
use super::plan::{State, Todo};
use super::saver::{Saved, Savers};
use crate::error::Error as BatchError;

/// Who listens, and may stop the run.
pub(super) type Watch<'a> = dyn FnMut(BatchEvent<'_>) -> ControlFlow<()> + 'a;

/// What a run has besides the engine.
pub(super) struct RunState<'a, 'w> {
    pub(super) todos: Vec<Todo>,
    pub(super) journal: Arc<Mutex<Journal>>,
    pub(super) savers: Savers,
    pub(super) watch: &'a mut Watch<'w>,
    pub(super) start: Instant,
    /// When the first image was begun: loading counts in no speed.
    pub(super) first_image: Option<Instant>,
    /// Encodes and decodes while the engine denoises, from the first image on where that is done.
    pub(super) worker: Option<OverlapWorker>,
    /// Images for which the worker had no memory. They are decoded when the engine has its turn.
    pub(super) undecoded: Vec<ImageTask<Latents>>,
    /// How long the worker encoded.
    pub(super) encoded: Duration,
    /// How long the worker decoded.
    pub(super) decoded: Duration,
    /// Images of this run.
    pub(super) made: usize,
    /// How long saving them took.
    pub(super) saved: Duration,
    /// Images of all runs.
    pub(super) done: usize,
    pub(super) failed: usize,
    pub(super) gpu_memory: Option<u64>,
    /// The error that ended the run though it is no job's fault, such as a full disk. Callers get
    /// [`kiln_engine::Error::Interrupted`], which no job is blamed for.
    pub(super) stopped_by: Option<BatchError>,
}

impl<'a, 'w> RunState<'a, 'w> {
    /// Nothing is made yet in this run; `done` and `failed` are those of runs before.
    pub(super) fn new(
        todos: Vec<Todo>,
        journal: Arc<Mutex<Journal>>,
        savers: Savers,
        watch: &'a mut Watch<'w>,
        [done, failed]: [usize; 2],
    ) -> Self {
        Self {
            todos,
            journal,
            savers,
            watch,
            start: Instant::now(),
            first_image: None,
            worker: None,
            undecoded: Vec::new(),
            encoded: Duration::ZERO,
            decoded: Duration::ZERO,
            made: 0,
            saved: Duration::ZERO,
            done,
            failed,
            gpu_memory: None,
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

    /// Takes an event of the engine, and looks what other threads have done.
    pub(super) fn event(&mut self, event: Event) -> Result<()> {
        self.look()?;
        self.pass_on(event)
    }

    fn pass_on(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Begin(stage) => self.tell(BatchEvent::Begin(stage)),
            Event::Step { done, total } => self.tell(BatchEvent::Step { done, total }),
            Event::DecodeAgain { seed, from, to, .. } => self.tell(BatchEvent::Warning(format!(
                "the image with seed {seed} overflowed {from} in the VAE; it and all that follow are decoded in {to}"
            ))),
            Event::Smaller { stage, from, to } => self
                .tell(BatchEvent::Warning(format!("no memory for {} with {from}; going on with {to}", stage.doing()))),
            Event::Text { .. } => self.tell(BatchEvent::Begin(Stage::Encode)),
            Event::Enlarge { .. } => self.tell(BatchEvent::Begin(Stage::Upscale)),
            Event::Preview { .. } | Event::Image(_) => Ok(()),
        }
    }

    /// Looks what was decoded and saved.
    pub(super) fn look(&mut self) -> Result<()> {
        let news = self.worker.as_ref().map(OverlapWorker::news).unwrap_or_default();
        self.take(news)?;
        let news = self.savers.news();
        self.record(news)
    }

    /// Takes what the worker has done: all of it, also where the run is to stop.
    pub(super) fn take(&mut self, news: Vec<Done>) -> Result<()> {
        let take = |done| match done {
            Done::Decoded(decoded) => self.take_one(*decoded),
            Done::Encoded(duration) => {
                self.encoded += duration;
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
                self.decoded += task.content.decode;
                self.save(task)?;
            }
            Err((task, error)) if error.is_out_of_memory() => {
                tracing::warn!("decoding while steps run: {error}; it is tried again between them");
                self.undecoded.push(task);
            }
            Err((task, error)) => self.fail(task.id, &error.to_string())?,
        }
        told
    }

    /// Hands an image to the threads that save.
    pub(super) fn save(&mut self, mut task: ImageTask<DecodedImage>) -> Result<()> {
        task.seconds.decode = task.content.decode.as_secs_f64();
        let Todo { task: of_set, path, replace, .. } = &self.todos[task.id];
        let file = |image| Unsaved { image, key: of_set.key.clone(), path: path.clone(), replace: *replace };
        let (task, image) = task.with(());
        let task = task.with(file(image)).0;
        self.savers.give(task).map_err(|error| self.stop(error))?;
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
        let written = self.journal.lock().unwrap_or_else(PoisonError::into_inner).append(&[line]);
        written.map_err(|error| self.stop(error))?;
        self.todos[id].state = State::Failed(error.into());
        self.failed += 1;
        let progress = self.progress();
        let task = &self.todos[id].task;
        let _ = (self.watch)(BatchEvent::Failed { number: task.number, line: task.line, error, progress });
        Ok(())
    }

    /// Sends an event to the caller, who may stop the run.
    pub(super) fn tell(&mut self, event: BatchEvent<'_>) -> Result<()> {
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
            card_memory: self.gpu_memory,
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
