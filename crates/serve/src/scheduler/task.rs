//! What the scheduler runs, and what it reports about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
    /// What is made.
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

/// What happens to a task.
pub enum News {
    /// It waits, with so many tasks before it.
    Position(usize),
    /// Its first images are about to join the running batch.
    Started,
    /// A stage begins.
    Stage(Stage),
    /// Calls of the denoiser that are done, of all calls of the task.
    Step {
        /// Calls that are done.
        done: usize,
        /// All calls.
        total: usize,
    },
    /// What an image would look like, small.
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

/// Requests to a task, which the scheduler reads between steps.
#[derive(Debug, Default)]
pub struct Control {
    cancel: AtomicBool,
    finish: AtomicBool,
    skips: AtomicUsize,
    preview_every: AtomicUsize,
}

impl Control {
    /// A control of a task with previews every so many steps; 0 is for none.
    pub fn with_previews(every: usize) -> Arc<Self> {
        Arc::new(Self { preview_every: every.into(), ..Self::default() })
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

    /// Whether a preview is wanted after `step` steps.
    pub(super) fn wants_preview(&self, step: usize) -> bool {
        let every = self.preview_every.load(Ordering::Relaxed);
        every > 0 && step.is_multiple_of(every)
    }
}
