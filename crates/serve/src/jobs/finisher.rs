//! Jobs whose client waits for the answer.

use std::sync::Arc;

use super::entry::Entry;
use crate::app::App;

/// Holds a job while its client waits: when this is dropped before the job's end, the client has gone, and the job is
/// canceled. A job that was answered is forgotten.
pub(crate) struct Finisher {
    app: Arc<App>,
    entry: Arc<Entry>,
    /// Whether the images are kept, since they are asked for later.
    keeps: bool,
}

impl Finisher {
    /// Holds a job; `keeps` says whether its images are asked for later.
    pub(crate) fn new(app: Arc<App>, entry: Arc<Entry>, keeps: bool) -> Self {
        Self { app, entry, keeps }
    }
}

impl Drop for Finisher {
    fn drop(&mut self) {
        if !self.entry.is_finished() {
            tracing::info!(job = self.entry.id, "canceled: the client has gone");
            self.entry.control.cancel();
        }
        if !self.keeps {
            self.app.jobs.remove(&self.entry.id);
        }
    }
}
