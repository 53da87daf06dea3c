//! How many images of a group run at once on one device: a number that was given, one that is known, or one that is searched while
//! images are made.

use std::sync::Arc;

use kiln_engine::{BatchSize, Engine, Job};

use super::device_run::Common;
use super::size_search::{Next, SizeSearch};
use super::work_queue::{At, LOOK_AHEAD, equal};

/// The batch size of a group of images on one device.
#[derive(Debug)]
pub(super) enum GroupSize {
    /// A number that was given.
    Given(usize),
    /// The fastest number.
    Auto(Box<Auto>),
}

/// A number that Kiln chooses.
#[derive(Debug)]
pub(super) struct Auto {
    search: SizeSearch,
    /// The first image of the group: all have its size.
    job: Arc<Job>,
    /// The key of what is found.
    kind: String,
    /// The number that was found, now or in an earlier run.
    found: Option<usize>,
}

impl Default for GroupSize {
    fn default() -> Self {
        Self::Given(1)
    }
}

impl GroupSize {
    /// That of a group of which `left` images are left; `first` is one of them, whose networks are open.
    pub(super) fn new(common: &Common<'_, '_, '_>, engine: &Engine, first: &Arc<Job>, left: usize) -> Self {
        match common.options.batch_size {
            _ if common.options.deterministic || left == 1 => Self::Given(1),
            BatchSize::Of(n) => Self::Given(n.max(1)),
            BatchSize::Auto => {
                // What has no room at all is refused when it is run.
                let share = share(common, left);
                let planned = equal(share, engine.planned_batch_size(first, share).unwrap_or(1));
                let kind = engine.kind_of_batches(first);
                let (search, job) = (SizeSearch::new(planned, share), first.clone());
                Self::Auto(Box::new(Auto { search, job, kind, found: None }))
            }
        }
    }

    /// The batch size for the next images, and the most batches to take.
    pub(super) fn next(
        &mut self,
        common: &Common<'_, '_, '_>,
        engine: &Engine,
        (at, left): (At, usize),
    ) -> (usize, usize) {
        let auto = match self {
            Self::Given(n) => return (common.queue.even(at, *n), LOOK_AHEAD),
            Self::Auto(auto) => auto,
        };
        let share = share(common, left);
        let mut has_room = |n| engine.has_room_for(&auto.job, n).unwrap_or(false);
        let most = auto.search.most();
        if auto.found.is_none() {
            // What another device or an earlier run has found.
            auto.found = common.sizes.get(&auto.kind).filter(|n| *n <= most && has_room(*n));
        }
        let size = match auto.found {
            Some(size) => size,
            None => match auto.search.next(share, &mut has_room) {
                Next::Try { size, batches } => return (size, batches),
                Next::Found { size, speed } => {
                    let Job { width, height, .. } = *auto.job;
                    let about = format!("{}, {width}x{height}", engine.model().name());
                    tracing::info!(size, speed, about, "the fastest batch size");
                    common.sizes.put(&auto.kind, about, (size, speed));
                    auto.found = Some(size);
                    size
                }
                Next::TooFew { size } => size,
            },
        };
        (common.queue.even(at, size.min(share).min(most)), LOOK_AHEAD)
    }

    /// Whether Kiln chooses the number.
    pub(super) fn is_automatic(&self) -> bool {
        matches!(self, Self::Auto(_))
    }

    /// The most images that memory has room for at once, as far as is known.
    pub(super) fn most(&self) -> usize {
        match self {
            Self::Given(_) => usize::MAX,
            Self::Auto(auto) => auto.search.most(),
        }
    }

    /// Says that a batch of `images` took so long.
    pub(super) fn took(&mut self, images: usize, time: std::time::Duration) {
        if let Self::Auto(auto) = self {
            auto.search.took(images, time);
        }
    }

    /// Says that memory was out for a batch of `images`.
    pub(super) fn no_room(&mut self, images: usize) {
        if let Self::Auto(auto) = self {
            auto.search.no_room(images);
            auto.found = None;
        }
    }
}

/// The images of a group that a device can expect.
fn share(common: &Common<'_, '_, '_>, left: usize) -> usize {
    left.div_ceil(common.options.setups.len().max(1)).max(1)
}
