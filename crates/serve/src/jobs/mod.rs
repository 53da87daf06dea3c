//! Jobs that the server knows: those that wait or run, and those that are finished, for a while.

mod current;
mod entry;
mod finisher;
mod listener;
mod short;
mod views;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};

pub(crate) use current::Current;
pub(crate) use entry::{Entry, Image, NewJob, Seen};
pub(crate) use finisher::Finisher;
pub(crate) use listener::JobListener;
pub(crate) use short::{cut_text, cut_texts};
pub(crate) use views::{ErrorView, EventView, JobView, PreviewView, request_of, without_inputs};

/// Bytes of jobs, their requests and their images, that are kept at most; the oldest go first.
const MOST_BYTES: usize = 512 << 20;
/// Jobs in a list.
const LISTED: usize = 1000;

/// All jobs.
pub(crate) struct Jobs {
    /// In the order of their arrival.
    entries: Mutex<Vec<Arc<Entry>>>,
    keep: Duration,
    prefix: Option<String>,
    /// [`MOST_BYTES`].
    most: usize,
    random: SystemRandom,
}

impl Jobs {
    /// No jobs; finished ones are kept for `keep`. Numbers of new ones begin with `prefix`.
    pub(crate) fn new(keep: Duration, prefix: Option<String>) -> Self {
        Self { entries: Mutex::default(), keep, prefix, most: MOST_BYTES, random: SystemRandom::new() }
    }

    /// The prefix, and a random number in hexadecimal digits.
    pub(crate) fn new_id(&self) -> String {
        let mut bytes = [0; 8];
        if self.random.fill(&mut bytes).is_err() {
            tracing::error!("the system gives no random numbers");
        }
        let number = kiln_files::hex(&bytes);
        self.prefix.as_ref().map_or_else(|| number.clone(), |prefix| format!("{prefix}-{number}"))
    }

    pub(crate) fn add(&self, entry: Arc<Entry>) {
        self.entries.lock().push(entry);
    }

    /// The newest ones of those that a client `sees`, the newest first.
    pub(crate) fn newest(&self, sees: impl Fn(&Entry) -> bool) -> Vec<Arc<Entry>> {
        self.entries.lock().iter().rev().filter(|entry| sees(entry)).take(LISTED).cloned().collect()
    }

    /// How many jobs of a client are not finished.
    pub(crate) fn unfinished_of(&self, client: &str) -> usize {
        let (entries, now) = (self.entries.lock(), Instant::now());
        entries.iter().filter(|entry| entry.client == client && entry.finished_for(now).is_none()).count()
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Entry>> {
        self.entries.lock().iter().find(|entry| entry.id == id).cloned()
    }

    /// Forgets a job with its images.
    pub(crate) fn remove(&self, id: &str) {
        self.entries.lock().retain(|entry| entry.id != id);
    }

    /// The image with this number, of a job that `is_seen`.
    pub(crate) fn image(&self, id: &str, is_seen: impl Fn(&Entry) -> bool) -> Option<Arc<Image>> {
        let (job, index) = id.rsplit_once('-')?;
        self.get(job).filter(|entry| is_seen(entry))?.image(index.parse().ok()?)
    }

    /// Forgets jobs that were finished long enough ago, and the oldest finished ones where all together take too
    /// much memory.
    pub(crate) fn prune(&self, now: Instant) {
        let mut entries = self.entries.lock();
        entries.retain(|entry| entry.finished_for(now).is_none_or(|time| time < self.keep));
        let mut bytes: usize = entries.iter().map(|entry| entry.bytes()).sum();
        entries.retain(|entry| {
            let goes = bytes > self.most && entry.finished_for(now).is_some();
            bytes = bytes.saturating_sub(if goes { entry.bytes() } else { 0 });
            !goes
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;
    use crate::scheduler::{Control, End};

    #[test]
    fn finished_jobs_are_counted_with_their_requests() {
        let jobs = Jobs { most: 25_000, ..Jobs::new(Duration::from_secs(600), None) };
        for number in 0..5 {
            let entry = Entry::new(NewJob {
                client: String::new(),
                id: number.to_string(),
                model: "a".into(),
                request: Map::from_iter([("prompt".to_string(), Value::from("x".repeat(10_000)))]),
                warnings: Vec::new(),
                total_images: 1,
                batches: 1,
                control: Arc::<Control>::default(),
            });
            if number != 1 {
                entry.end(End::Canceled);
            }
            jobs.add(entry);
        }
        jobs.prune(Instant::now());
        // The oldest ones go, except for one that is not finished.
        let left: Vec<String> = jobs.newest(|_| true).iter().map(|entry| entry.id.clone()).collect();
        assert_eq!(left, ["4", "1"]);
    }
}
