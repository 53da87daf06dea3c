//! Why a task must not go on, which callbacks of the engine ask within its stages, and its kernels within a call of a network.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_engine::StopSign;

use super::queue::Shared;
use super::task::{Control, Task};

/// The signs that end a task before it is done. They stay once they are there.
#[derive(Clone)]
pub(super) struct Stop {
    shared: Arc<Shared>,
    control: Arc<Control>,
    submitted: Instant,
    limit: Option<Duration>,
}

impl Stop {
    pub(super) fn of(task: &Task, shared: &Arc<Shared>) -> Self {
        let Task { control, submitted, limit, .. } = task;
        Self { shared: shared.clone(), control: control.clone(), submitted: *submitted, limit: *limit }
    }

    /// Whether the task is canceled, its time is over, or the server stops.
    pub(super) fn is_there(&self) -> bool {
        let is_late = || self.limit.is_some_and(|limit| self.submitted.elapsed() >= limit);
        self.control.is_canceled() || is_late() || self.shared.is_stopping()
    }

    /// The stop sign for the engine's kernels.
    pub(super) fn sign(&self) -> StopSign {
        let stop = self.clone();
        StopSign::new(move || stop.is_there())
    }

    /// The answer of a callback of the engine.
    pub(super) fn flow(&self) -> ControlFlow<()> {
        if self.is_there() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
