//! Tasks of the scheduler, and their events.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kiln_engine::{GeneratedImage, Job, Stage};
use kiln_media::Rgb8Image;
use kiln_models::ModelFolder;

/// A job with somebody who listens.
pub struct Task {
    /// The client; tasks of one client share its part of the server.
    pub client: String,
    /// The model, which [`Arc::ptr_eq`] distinguishes from others.
    pub model: Arc<ModelFolder>,
    /// Tasks of a higher priority come first; 0 is usual.
    pub priority: i32,
    /// When it came.
    pub submitted: Instant,
    /// After this time it ends without its images.
    pub limit: Option<Duration>,
    /// The job.
    pub job: Arc<Job>,
    /// Requests to the running task.
    pub control: Arc<Control>,
    /// Hears what becomes of it, on the scheduler's thread.
    pub listener: Box<dyn Listener>,
}

/// Hears what becomes of a task. Calls must return at once: steps wait for them.
pub trait Listener: Send {
    /// Something happened. [`News::End`] is the last.
    fn tell(&mut self, news: News);
}

/// An event of a task.
pub enum News {
    /// It waits, with so many tasks before it.
    Position(usize),
    /// Its first images are about to join the running batch.
    Started,
    /// A stage begins.
    Stage(Stage),
    /// The weights of its model are loaded.
    Loaded,
    /// Calls of the denoiser that are done, of all calls of the task.
    Step {
        /// Calls that are done.
        done: usize,
        /// All calls.
        total: usize,
    },
    /// A small preview of an image.
    Preview {
        /// The number of the image in its job.
        index: usize,
        /// Calls of the denoiser that are done for the image.
        step: usize,
        /// One pixel for each latent.
        image: Rgb8Image,
    },
    /// An image is done.
    Image(Box<GeneratedImage>),
    /// Something was not done as asked, or at a cost.
    Warning(String),
    /// Nothing follows.
    End(End),
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// All of its images were made, or it was asked to finish.
    Done,
    /// It was canceled.
    Canceled,
    /// It was not done within this time, its limit.
    Expired(Duration),
    /// It cannot be made.
    Failed {
        /// Why.
        message: String,
        /// Whether the request is at fault, and not the run.
        is_usage: bool,
    },
}

/// The least time between two regular previews of a batch.
const BETWEEN_PREVIEWS: Duration = Duration::from_millis(200);

/// Which previews a client wants of each image.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Previews {
    /// None.
    #[default]
    None,
    /// One after every so many steps (at least 1), but not many a second. Only the newest is of interest.
    Every(usize),
    /// The same, but only where a client has asked for one ([`Control::ask_for_preview`]) since the last one.
    Asked(usize),
    /// So many, spread evenly over the steps, however fast these are. All of them are of interest.
    Spread(usize),
}

impl Previews {
    /// One after every so many steps; none for 0.
    pub fn every(steps: usize) -> Self {
        if steps == 0 { Self::None } else { Self::Every(steps) }
    }

    /// Whether one is wanted after `step` of `steps` steps, `since_last` after the last one. What follows the last step is
    /// no preview.
    fn are_due(self, step: usize, steps: usize, since_last: Option<Duration>) -> bool {
        if step >= steps {
            return false;
        }
        match self {
            Self::None => false,
            Self::Every(every) | Self::Asked(every) => {
                step.is_multiple_of(every) && since_last.is_none_or(|time| time >= BETWEEN_PREVIEWS)
            }
            Self::Spread(count) => {
                let passed = |step: usize| step * (count + 1) / steps;
                passed(step) > passed(step.saturating_sub(1))
            }
        }
    }
}

/// Requests to a task, which the scheduler reads between steps.
#[derive(Debug, Default)]
pub struct Control {
    cancel: AtomicBool,
    finish: AtomicBool,
    skips: AtomicUsize,
    previews: Previews,
    /// Whether a client has asked for a preview since the last one.
    asked: AtomicBool,
    /// The place that the client gave the task among its own; 0 is none.
    place: AtomicU64,
}

impl Control {
    /// A control of a task with previews.
    pub fn with_previews(previews: Previews) -> Arc<Self> {
        Arc::new(Self { previews, ..Self::default() })
    }

    /// Says that a client wants to see a preview.
    pub fn ask_for_preview(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Whether every preview is to be kept for its readers, and not only the newest.
    pub fn keeps_previews(&self) -> bool {
        matches!(self.previews, Previews::Spread(_))
    }

    /// Ends the task without its images.
    pub fn cancel(&self) {
        self.cancel.store(true, Ordering::Relaxed);
    }

    /// Ends the task with its running images as they are.
    pub fn finish(&self) {
        self.finish.store(true, Ordering::Relaxed);
    }

    /// Ends the batch that runs, with its images as they are, and goes on with the next one.
    pub fn skip(&self) {
        self.skips.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives the task a place among those of its client that have one; lower ones come first.
    pub fn set_place(&self, place: u64) {
        self.place.store(place, Ordering::Relaxed);
    }

    /// The task's place among those of its client; 0 is none.
    pub fn place(&self) -> u64 {
        self.place.load(Ordering::Relaxed)
    }

    /// Whether the task was canceled.
    pub fn is_canceled(&self) -> bool {
        self.cancel.load(Ordering::Relaxed)
    }

    /// Whether the task was asked to finish.
    pub fn is_finishing(&self) -> bool {
        self.finish.load(Ordering::Relaxed)
    }

    /// Takes one request to skip.
    pub(super) fn take_skip(&self) -> bool {
        let less = |skips: usize| skips.checked_sub(1);
        self.skips.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Whether a preview is wanted after `step` of `steps` steps, `since_last` after the last one.
    pub(super) fn wants_preview(&self, step: usize, steps: usize, since_last: Option<Duration>) -> bool {
        let is_due = self.previews.are_due(step, steps, since_last);
        is_due && (!matches!(self.previews, Previews::Asked(_)) || self.asked.swap(false, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The steps of `total` with a preview, where each takes `milliseconds`.
    fn previewed(previews: Previews, total: usize, milliseconds: u64) -> Vec<usize> {
        let mut last: Option<usize> = None;
        let due = |step: &usize| {
            let since = last.map(|last| Duration::from_millis((*step - last) as u64 * milliseconds));
            let is_due = previews.are_due(*step, total, since);
            if is_due {
                last = Some(*step);
            }
            is_due
        };
        (1..=total).filter(due).collect()
    }

    #[test]
    fn previews_are_spread_over_fast_steps() {
        assert_eq!(previewed(Previews::Spread(2), 20, 0), [7, 14]);
        assert_eq!(previewed(Previews::Spread(3), 20, 0), [5, 10, 15]);
        assert_eq!(previewed(Previews::Spread(3), 3, 0), [1, 2]);
        assert_eq!(previewed(Previews::Spread(3), 1, 0), [0usize; 0]);
    }

    #[test]
    fn regular_previews_are_not_many_a_second() {
        assert_eq!(previewed(Previews::every(2), 8, 1000), [2, 4, 6]);
        assert_eq!(previewed(Previews::every(1), 8, 100), [1, 3, 5, 7]);
        assert_eq!(previewed(Previews::every(0), 8, 1000), [0usize; 0]);
    }

    #[test]
    fn a_preview_is_made_where_someone_asked() {
        let control = Control::with_previews(Previews::Asked(2));
        let wanted = |step| control.wants_preview(step, 8, None);
        assert!(!wanted(2));
        control.ask_for_preview();
        assert!(!wanted(3) && wanted(4) && !wanted(6));
    }
}
