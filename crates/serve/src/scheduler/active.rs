//! A task that waits or runs, and its batches in the running batch.

use std::time::Instant;

use kiln_engine::{Error, Event, GroupId, Job};

use super::policy::Candidate;
use super::task::{News, Task};

/// A task that is not done.
pub(super) struct Active {
    pub(super) task: Task,
    /// Its place in the order of arrival.
    pub(super) arrived: u64,
    /// Calls of the denoiser of one batch and the pixels of an image, for each pass.
    passes: Vec<(usize, usize)>,
    /// Calls of the denoiser of one batch, over both passes.
    pub(super) evaluations: usize,
    /// The number of the batch that starts next.
    pub(super) next: usize,
    /// Batches that are done.
    pub(super) finished: usize,
    /// Images that another thread decodes.
    pub(super) decoding: usize,
    /// Batches that run.
    pub(super) parts: Vec<Part>,
    /// Why it cannot go on when the step is done.
    pub(super) failed: Option<Error>,
    /// The workers that could not make it.
    pub(super) tried: Vec<usize>,
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
    /// Calls of the denoiser that are done, and those of them in the pass before.
    pub(super) done: usize,
    pub(super) before: usize,
    /// Width and height of its images in this pass.
    pub(super) size: [usize; 2],
    /// When its last preview was made.
    pub(super) previewed: Option<Instant>,
}

impl Active {
    /// A task in the order of arrival; the error if it has no schedule.
    pub(super) fn new(task: Task, arrived: u64) -> std::result::Result<Self, Box<(Task, kiln_engine::Error)>> {
        let of_pass = |job: &Job| Ok((job.evaluations(&task.model)?, job.width * job.height));
        let passes: Vec<(usize, usize)> = match task.job.passes().map(of_pass).collect::<kiln_request::Result<_>>() {
            Ok(passes) => passes,
            Err(error) => return Err(Box::new((task, error.into()))),
        };
        Ok(Self {
            task,
            arrived,
            evaluations: passes.iter().map(|(calls, _)| calls).sum(),
            passes,
            next: 0,
            finished: 0,
            decoding: 0,
            parts: Vec::new(),
            failed: None,
            tried: Vec::new(),
            position: None,
        })
    }

    /// Adds a batch that has joined a running batch of `lane`: the next one.
    pub(super) fn start_part(&mut self, lane: usize, group: GroupId) {
        let size = [self.task.job.width, self.task.job.height];
        self.parts.push(Part { number: self.next, lane, group, done: 0, before: 0, size, previewed: None });
        self.next += 1;
    }

    /// Resets the task to its start, if another worker can begin it: none of its images is done.
    pub(super) fn restarted(self) -> std::result::Result<Self, Box<Self>> {
        if self.finished > 0 || self.decoding > 0 {
            return Err(Box::new(self));
        }
        Ok(Self { next: 0, parts: Vec::new(), failed: None, position: None, ..self })
    }

    /// The work that it still needs: calls of the denoiser, times images, times the pixels of an image. A step takes about as long
    /// as its pixels are many.
    pub(super) fn remaining(&self) -> usize {
        let job = &self.task.job;
        let batches = job.batch_count.saturating_sub(self.finished);
        let done: usize = self.parts.iter().map(|part| self.work(part.done)).sum();
        (batches * self.work(self.evaluations)).saturating_sub(done) * job.batch_size
    }

    /// The work of the first calls of a batch for one image.
    fn work(&self, mut calls: usize) -> usize {
        let of_pass = |&(all, pixels): &(usize, usize)| {
            let own = calls.min(all);
            calls -= own;
            own * pixels
        };
        self.passes.iter().map(of_pass).sum()
    }

    /// Whether its time is over.
    pub(super) fn has_expired(&self, now: Instant) -> bool {
        self.task.limit.is_some_and(|limit| now.saturating_duration_since(self.task.submitted) >= limit)
    }

    /// Whether all batches are done.
    pub(super) fn is_done(&self) -> bool {
        self.finished == self.task.job.batch_count && self.decoding == 0
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

    /// Reports how many tasks wait before this one, if that changed.
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
        let (remaining, place) = (self.remaining(), self.task.control.place());
        let candidate = move |is_running, size| Candidate {
            client: &self.task.client,
            priority: self.task.priority,
            arrived: self.arrived,
            remaining,
            images: job.batch_size,
            kind: (lane, size),
            is_running,
            has_started: self.has_started(),
            place,
        };
        let running = self.parts.iter().enumerate().map(move |(i, part)| (Some(i), candidate(true, part.size)));
        let first = [job.width, job.height];
        let next = (may_start && self.next < job.batch_count).then(|| (None, candidate(false, first)));
        running.chain(next)
    }

    /// Whether a batch is to be previewed after its next step.
    pub(super) fn wants_preview(&self, part: &Part) -> bool {
        let since_last = part.previewed.map(|last| last.elapsed());
        self.task.control.wants_preview(part.done + 1, self.evaluations, since_last)
    }
}

/// The task's event for an event of the engine.
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
        Event::Text { .. } | Event::Step { .. } | Event::Preview { .. } | Event::Enlarge { .. } | Event::Image(_) => {
            return None;
        }
    })
}
