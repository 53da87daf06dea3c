//! A task that waits or runs, and its batches in the running batch.

use std::time::{Duration, Instant};

use kiln_engine::{Error, Event, GroupId};

use super::policy::Candidate;
use super::task::{End, News, Task};

/// The least time between two previews of a batch.
const BETWEEN_PREVIEWS: Duration = Duration::from_millis(200);

/// A task that is not done.
pub(super) struct Active {
    pub(super) task: Task,
    /// Its place in the order of arrival.
    pub(super) arrived: u64,
    /// Calls of the denoiser of one batch.
    pub(super) evaluations: usize,
    /// The number of the batch that starts next.
    pub(super) next: usize,
    /// Batches that are done.
    pub(super) finished: usize,
    /// Batches that run.
    pub(super) parts: Vec<Part>,
    /// How it ends when the step is done, where it cannot go on.
    pub(super) failed: Option<End>,
    /// The position that was reported last.
    position: Option<usize>,
}

/// A batch of a task in a running batch.
pub(super) struct Part {
    /// The batch's number in its job.
    pub(super) number: usize,
    /// Its lane, and its group there.
    pub(super) lane: usize,
    pub(super) group: GroupId,
    /// Calls of the denoiser that are done.
    pub(super) done: usize,
    /// When its last preview was made.
    pub(super) previewed: Option<Instant>,
}

impl Active {
    /// A task in the order of arrival; with the error where it has no schedule.
    pub(super) fn new(task: Task, arrived: u64) -> std::result::Result<Self, (Task, Error)> {
        let evaluations = match task.job.schedule(&task.model) {
            Ok(schedule) => schedule.points().len() - schedule.start(),
            Err(error) => return Err((task, error.into())),
        };
        let (next, finished, parts) = (0, 0, Vec::new());
        Ok(Self { task, arrived, evaluations, next, finished, parts, failed: None, position: None })
    }

    /// Whether all batches are done.
    pub(super) fn is_done(&self) -> bool {
        self.finished == self.task.job.batch_count
    }

    /// Whether any batch has started.
    pub(super) fn has_started(&self) -> bool {
        self.next > 0
    }

    /// Calls of the denoiser that are done, and all of them.
    pub(super) fn progress(&self) -> (usize, usize) {
        let running: usize = self.parts.iter().map(|part| part.done).sum();
        (self.finished * self.evaluations + running, self.task.job.batch_count * self.evaluations)
    }

    /// Reports the progress.
    pub(super) fn tell_progress(&mut self) {
        let (done, total) = self.progress();
        self.task.listener.tell(News::Step { done, total });
    }

    /// Reports how many tasks wait before this one, where that changed.
    pub(super) fn tell_position(&mut self, position: usize) {
        if self.position.replace(position) != Some(position) {
            self.task.listener.tell(News::Position(position));
        }
    }

    /// Its images that may take part in a step: each batch that runs, and, where `may_start`, the next one. With each comes
    /// the number of the batch among [`Self::parts`].
    pub(super) fn candidates(
        &self,
        lane: usize,
        may_start: bool,
    ) -> impl Iterator<Item = (Option<usize>, Candidate<'_>)> {
        let job = &self.task.job;
        let (done, total) = self.progress();
        let candidate = move |is_running| Candidate {
            client: &self.task.client,
            arrived: self.arrived,
            remaining: (total - done) * job.batch_size,
            images: job.batch_size,
            kind: (lane, [job.width, job.height]),
            is_running,
            has_started: self.has_started(),
        };
        let running = (0..self.parts.len()).map(move |i| (Some(i), candidate(true)));
        let next = (may_start && self.next < job.batch_count).then(|| (None, candidate(false)));
        running.chain(next)
    }

    /// Whether a batch is to be previewed after its next step.
    pub(super) fn wants_preview(&self, part: &Part) -> bool {
        let is_due = part.previewed.is_none_or(|last| last.elapsed() >= BETWEEN_PREVIEWS);
        is_due && self.task.control.wants_preview(part.done + 1) && part.done + 1 < self.evaluations
    }
}

/// What an event of the engine means for a task.
pub(super) fn news_of(event: Event) -> Option<News> {
    Some(match event {
        Event::Begin(stage) => News::Stage(stage),
        Event::Smaller { stage, from, to } => {
            News::Warning(format!("out of memory for {} with {from}; continuing with {to}", stage.doing()))
        }
        Event::DecodeAgain { index, from, to, .. } => News::Warning(format!(
            "image {} overflowed {from} in the VAE; it and all following images are decoded in {to}",
            index + 1
        )),
        Event::Text { .. } | Event::Step { .. } | Event::Enlarge { .. } | Event::Image(_) => return None,
    })
}
