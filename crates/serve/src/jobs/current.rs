//! The job that is meant where a client names none.

use std::sync::Arc;

use parking_lot::Mutex;

use super::entry::Entry;

/// Requests whose clients wait and know no numbers of jobs, in the order of their arrival: the jobs of each.
#[derive(Default)]
pub(crate) struct Current(Arc<Mutex<Vec<Arc<Jobs>>>>);

type Jobs = Vec<Arc<Entry>>;

/// Takes the jobs of a request out of the list when it goes.
pub(crate) struct Waiting {
    list: Arc<Mutex<Vec<Arc<Jobs>>>>,
    jobs: Arc<Jobs>,
}

impl Current {
    /// Adds the jobs of a request for as long as its client waits.
    pub(crate) fn enter(&self, jobs: Jobs) -> Waiting {
        let jobs = Arc::new(jobs);
        self.0.lock().push(jobs.clone());
        Waiting { list: self.0.clone(), jobs }
    }

    /// The oldest request that is not finished, of those whose jobs `is_seen`: its first job that is not, how many are, and all of them.
    pub(crate) fn current(&self, is_seen: impl Fn(&Entry) -> bool) -> Option<(Arc<Entry>, usize, Arc<Jobs>)> {
        self.0.lock().iter().find_map(|jobs| {
            let entry = jobs.iter().find(|entry| !entry.is_finished() && is_seen(entry))?;
            let finished = jobs.iter().filter(|entry| entry.is_finished()).count();
            Some((entry.clone(), finished, jobs.clone()))
        })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.list.lock().retain(|jobs| !Arc::ptr_eq(jobs, &self.jobs));
    }
}
