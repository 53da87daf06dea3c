//! What a run of a set keeps in its books: what is pending, made and failed, and who is told.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use kiln_mempool::ProcessMemory;

use super::events::{BatchEvent, BatchProgress};
use super::journal::{Journal, Line};
use super::overlap_worker::{Aside, Decoded, Done, Order};
use super::plan::{State, Todo};
use super::saver::{Parcel, Saved, Savers};
use crate::error::{Error, Result};
use crate::pipeline::event::Event;
use crate::pipeline::run::Drawn;

/// Who listens, and may stop the run.
pub(super) type Watch<'a> = dyn FnMut(BatchEvent<'_>) -> ControlFlow<()> + 'a;

/// What a run has at hand beside the engine.
pub(super) struct Desk<'a, 'w> {
    pub(super) todos: Vec<Todo>,
    pub(super) journal: Arc<Mutex<Journal>>,
    pub(super) savers: Savers,
    pub(super) watch: &'a mut Watch<'w>,
    pub(super) start: Instant,
    /// When the first picture was begun: loading counts in no speed.
    pub(super) drawing: Option<Instant>,
    /// Works while the engine draws, from the first picture on where that is so.
    pub(super) aside: Option<Aside>,
    /// What had no memory there, and is decoded when the engine has its turn.
    pub(super) undecoded: Vec<Order>,
    /// How long encoding took beside the engine.
    pub(super) encoded: Duration,
    /// How long decoding took there.
    pub(super) decoded: Duration,
    /// Pictures of this run.
    pub(super) made: usize,
    /// How long saving them took.
    pub(super) saved: Duration,
    /// Pictures of all runs.
    pub(super) done: usize,
    pub(super) failed: usize,
    pub(super) card_memory: Option<u64>,
    /// What ended the run though it is no job's fault, such as a full disk. Whoever is told so gets
    /// [`Error::Interrupted`], which no job is blamed for.
    pub(super) stopped_by: Option<Error>,
}

impl<'a, 'w> Desk<'a, 'w> {
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
            drawing: None,
            aside: None,
            undecoded: Vec::new(),
            encoded: Duration::ZERO,
            decoded: Duration::ZERO,
            made: 0,
            saved: Duration::ZERO,
            done,
            failed,
            card_memory: None,
            stopped_by: None,
        }
    }

    /// Ends the run with an error of its own.
    pub(super) fn stop(&mut self, error: Error) -> Error {
        match error {
            Error::Interrupted => {}
            error => drop(self.stopped_by.get_or_insert(error)),
        }
        Error::Interrupted
    }

    /// Takes the engine's news, and looks what other threads have done.
    pub(super) fn event(&mut self, event: Event) -> Result<()> {
        self.look()?;
        self.pass_on(event)
    }

    fn pass_on(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Begin(stage) => self.tell(BatchEvent::Begin(stage)),
            Event::Step { done, total } => self.tell(BatchEvent::Step { done, total }),
            Event::DecodeAgain { seed, from, to, .. } => self.tell(BatchEvent::Warning(format!(
                "the picture with seed {seed} overflowed {from} in the VAE; it and all that follow are decoded in {to}"
            ))),
            Event::Smaller { stage, from, to } => self
                .tell(BatchEvent::Warning(format!("no memory for {} with {from}; going on with {to}", stage.doing()))),
            Event::Text { .. } => self.tell(BatchEvent::Begin(crate::pipeline::event::Stage::Encode)),
            Event::Picture(_) => Ok(()),
        }
    }

    /// Looks what was decoded and saved.
    pub(super) fn look(&mut self) -> Result<()> {
        let news = self.aside.as_ref().map(Aside::news).unwrap_or_default();
        self.take(news)?;
        let news = self.savers.news();
        self.record(news)
    }

    /// Takes what was done beside the engine: all of it, also where somebody wants to stop.
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
        let Decoded { order, result, widened } = decoded;
        let told = widened.into_iter().try_for_each(|news| self.pass_on(order.picture.again(news)));
        match result {
            Ok(drawn) => {
                self.decoded += drawn.decode;
                self.save(order, drawn)?;
            }
            Err(error) if error.is_out_of_memory() => {
                tracing::warn!("decoding beside the steps: {error}; it is tried again behind them");
                self.undecoded.push(order);
            }
            Err(error) => self.fail(order.id, &error.to_string())?,
        }
        told
    }

    /// Hands a picture to who saves it.
    pub(super) fn save(&mut self, order: Order, drawn: Drawn) -> Result<()> {
        let Order { id, job, origin, mut seconds, .. } = order;
        let Drawn { image, latents, decode } = drawn;
        seconds.decode = decode.as_secs_f64();
        let Todo { task, path, replace, .. } = &self.todos[id];
        let (key, path, replace) = (task.key.clone(), path.clone(), *replace);
        let parcel = Parcel { id, key, job, origin, image, latents, path, replace, seconds };
        self.savers.give(parcel).map_err(|error| self.stop(error))?;
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

    /// Records that a picture cannot be made.
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

    /// Tells who listens.
    pub(super) fn tell(&mut self, event: BatchEvent<'_>) -> Result<()> {
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

/// Whether a picture that could not be saved is at fault itself. A full disk or a folder that is gone is not of its
/// making: the next picture would meet it too, and later, when there is room, this one can be made.
fn is_of_the_job(error: &Error) -> bool {
    use std::io::ErrorKind::{AlreadyExists, InvalidFilename, IsADirectory, NotADirectory, PermissionDenied};
    match error {
        Error::Write { source, .. } => {
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
        let write = |kind: ErrorKind| Error::write("a.png".as_ref())(kind.into());
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge, ErrorKind::NotFound] {
            assert!(!is_of_the_job(&write(kind)), "{kind:?}");
        }
        // No space, a read-only file system, an error of the device, a stale handle of a network file system.
        for number in [28, 30, 5, 116] {
            let error = std::io::Error::from_raw_os_error(number);
            assert!(!is_of_the_job(&Error::write("a.png".as_ref())(error)) || !cfg!(target_os = "linux"), "{number}");
        }
        assert!(is_of_the_job(&write(ErrorKind::PermissionDenied)) && is_of_the_job(&Error::Exists("a.png".into())));
    }
}
