//! The job that is meant where a client names none.

use std::sync::Arc;

use parking_lot::Mutex;

use super::entry::Entry;

/// Jobs whose clients wait and know no numbers of jobs, in the order of their arrival.
#[derive(Default)]
pub(crate) struct Current(Arc<Mutex<Vec<Arc<Entry>>>>);

/// Takes a job out of the list when it goes.
pub(crate) struct Waiting {
    list: Arc<Mutex<Vec<Arc<Entry>>>>,
    entry: Arc<Entry>,
}

impl Current {
    /// Adds a job for as long as its client waits.
    pub(crate) fn enter(&self, entry: Arc<Entry>) -> Waiting {
        self.0.lock().push(entry.clone());
        Waiting { list: self.0.clone(), entry }
    }

    /// The oldest job that is not finished, of those that `is_seen`.
    pub(crate) fn current(&self, is_seen: impl Fn(&Entry) -> bool) -> Option<Arc<Entry>> {
        self.0.lock().iter().find(|entry| !entry.is_finished() && is_seen(entry)).cloned()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.list.lock().retain(|entry| !Arc::ptr_eq(entry, &self.entry));
    }
}
