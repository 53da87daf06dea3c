//! Jobs that the server knows: those that wait or run, and those that are finished, for a while.

mod current;
mod entry;
mod finisher;
mod listener;
mod order;
mod short;
mod views;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ring::rand::{SecureRandom, SystemRandom};

pub(crate) use current::Current;
pub(crate) use entry::{Entry, Image, NewJob, Seen};
pub(crate) use finisher::Finisher;
pub(crate) use listener::JobListener;
pub(crate) use order::NewPlace;
pub(crate) use short::{cut_text, cut_texts};
pub(crate) use views::{ErrorView, EventView, JobView, PreviewView, StepView, without_inputs};

/// Jobs in a list.
const LISTED: usize = 1000;

/// All jobs.
pub(crate) struct Jobs {
    /// In the order of their arrival.
    entries: Mutex<Vec<Arc<Entry>>>,
    keep: Duration,
    prefix: Option<String>,
    /// Bytes of jobs, their requests and their images, that are kept at most.
    most: usize,
    random: SystemRandom,
}

impl Jobs {
    /// No jobs; finished ones are kept for `keep`, and less long when all take more than `most` bytes. Numbers of new ones begin with
    /// `prefix`.
    pub(crate) fn new(keep: Duration, prefix: Option<String>, most: usize) -> Self {
        Self { entries: Mutex::default(), keep, prefix, most, random: SystemRandom::new() }
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

    /// The numbers of all jobs that are not finished.
    pub(crate) fn unfinished(&self) -> Vec<String> {
        let (entries, now) = (self.entries.lock(), Instant::now());
        entries.iter().filter(|entry| entry.finished_for(now).is_none()).map(|entry| entry.id.clone()).collect()
    }

    pub(crate) fn get(&self, id: &str) -> Option<Arc<Entry>> {
        self.entries.lock().iter().find(|entry| entry.id == id).cloned()
    }

    /// Whether clients have not come for images of jobs that ended less than `within` ago.
    pub(crate) fn are_unread(&self, within: Duration) -> bool {
        let (entries, now) = (self.entries.lock(), Instant::now());
        entries.iter().any(|entry| entry.finished_for(now).is_some_and(|time| time < within) && entry.is_unread())
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

    /// Forgets jobs that were finished long enough ago. When all together take too much memory, the oldest finished one of the
    /// client whose finished jobs take most goes, until they do not: a client with many or large ones does not push out those of others.
    pub(crate) fn prune(&self, now: Instant) {
        let mut entries = self.entries.lock();
        entries.retain(|entry| entry.finished_for(now).is_none_or(|time| time < self.keep));
        let sizes: Vec<usize> = entries.iter().map(|entry| entry.bytes()).collect();
        let mut bytes: usize = sizes.iter().sum();
        if bytes <= self.most {
            return;
        }
        // By clients: the bytes of finished jobs, and the jobs, the newest first.
        let mut clients: BTreeMap<String, (usize, Vec<(usize, usize)>)> = BTreeMap::new();
        for (place, (entry, size)) in entries.iter().zip(sizes).enumerate().rev() {
            if entry.finished_for(now).is_some() {
                let (held, jobs) = clients.entry(entry.client.clone()).or_default();
                *held += size;
                jobs.push((place, size));
            }
        }
        let mut gone = BTreeSet::new();
        while bytes > self.most
            && let Some((held, jobs)) = clients.values_mut().max_by_key(|(held, _)| *held)
            && let Some((place, size)) = jobs.pop()
        {
            *held -= size;
            bytes -= size;
            gone.insert(place);
        }
        let mut place = 0;
        entries.retain(|_| {
            place += 1;
            !gone.contains(&(place - 1))
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;
    use crate::scheduler::{Control, End};

    fn job(client: &str, id: impl ToString, bytes: usize) -> Arc<Entry> {
        Entry::new(NewJob {
            client: client.into(),
            id: id.to_string(),
            model: "a".into(),
            request: Map::from_iter([("prompt".to_string(), Value::from("x".repeat(bytes)))]),
            warnings: Vec::new(),
            total_images: 1,
            size: (64, 64),
            batches: 1,
            control: Arc::<Control>::default(),
        })
    }

    #[test]
    fn the_client_whose_finished_jobs_take_most_gives_way() {
        let jobs = Jobs::new(Duration::from_secs(600), None, 100_000);
        for (number, (client, bytes)) in
            [("ann", 10_000), ("bob", 30_000), ("bob", 30_000), ("bob", 30_000), ("bob", 30_000)]
                .into_iter()
                .enumerate()
        {
            let entry = job(client, number, bytes);
            entry.end(End::Canceled);
            jobs.add(entry);
            jobs.prune(Instant::now());
        }
        let left =
            |jobs: &Jobs| -> Vec<String> { jobs.newest(|_| true).iter().map(|entry| entry.id.clone()).collect() };
        assert_eq!(left(&jobs), ["4", "3", "0"]);
        // A job that runs stays, also when it is all that there is.
        jobs.add(job("bob", 5, 200_000));
        jobs.prune(Instant::now());
        assert_eq!(left(&jobs), ["5"]);
    }

    #[test]
    fn finished_jobs_are_counted_with_their_requests() {
        let jobs = Jobs::new(Duration::from_secs(600), None, 25_000);
        for number in 0..5 {
            let entry = job("", number, 10_000);
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
