//! The order in which a client's jobs wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Entry, Jobs};
use crate::error::Refused;

/// The highest place that any job has. A move gives the waiting jobs of its client higher places in their new order, so that jobs that
/// have started keep lower ones.
static LAST_PLACE: AtomicU64 = AtomicU64::new(0);

/// The new place of a job among those of its client that wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NewPlace {
    /// Before the job with this number.
    Before(String),
    /// This number of jobs come before it; the last place if fewer wait.
    Position(usize),
}

impl Jobs {
    /// Moves a job among those of its client that wait.
    ///
    /// # Errors
    /// [`Refused`] if the job does not wait, or the other one is none of the same client that does.
    pub(crate) fn move_to(&self, entry: &Arc<Entry>, place: &NewPlace) -> Result<(), Refused> {
        let entries = self.entries.lock();
        let mut waiting: Vec<&Arc<Entry>> =
            entries.iter().filter(|other| other.client == entry.client && other.is_waiting()).collect();
        // Jobs without a place came after the others were moved. The sort is stable.
        waiting.sort_by_key(|other| (other.control.place() == 0, other.control.place()));
        let Some(from) = waiting.iter().position(|other| Arc::ptr_eq(other, entry)) else {
            return Err(Refused::invalid(format!("job {} does not wait, and only such jobs can be moved", entry.id)));
        };
        let moved = waiting.remove(from);
        let to = match place {
            NewPlace::Position(position) => (*position).min(waiting.len()),
            NewPlace::Before(id) => waiting.iter().position(|other| other.id == *id).ok_or_else(|| {
                let expected = "the number of another job of the same client that waits";
                Refused::value("before", format!("{id:?}"), expected)
            })?,
        };
        waiting.insert(to, moved);
        let count = waiting.len() as u64;
        let first = LAST_PLACE.fetch_add(count, Ordering::Relaxed) + 1;
        waiting.iter().zip(first..).for_each(|(entry, place)| entry.control.set_place(place));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::NewJob;
    use super::*;
    use crate::scheduler::{Control, End};

    fn job(client: &str, id: &str) -> Arc<Entry> {
        Entry::new(NewJob {
            client: client.into(),
            id: id.into(),
            model: "a".into(),
            request: serde_json::Map::new(),
            warnings: Vec::new(),
            total_images: 1,
            size: (64, 64),
            batches: 1,
            control: Arc::<Control>::default(),
        })
    }

    #[test]
    fn jobs_of_a_client_change_places() {
        let jobs = Jobs::new(Duration::from_secs(600), None, 1 << 20);
        for (client, id) in [("ann", "a"), ("bob", "x"), ("ann", "b"), ("ann", "c")] {
            jobs.add(job(client, id));
        }
        let order = || {
            let mut all: Vec<Arc<Entry>> = jobs.newest(|entry| entry.client == "ann" && entry.is_waiting());
            all.reverse();
            all.sort_by_key(|entry| (entry.control.place() == 0, entry.control.place()));
            all.iter().map(|entry| entry.id.clone()).collect::<String>()
        };
        let to = |id: &str, place: NewPlace| jobs.move_to(&jobs.get(id).unwrap(), &place).map_err(|e| e.message);
        to("c", NewPlace::Before("a".into())).unwrap();
        assert_eq!(order(), "cab");
        to("c", NewPlace::Position(1)).unwrap();
        assert_eq!(order(), "acb");
        to("a", NewPlace::Position(usize::MAX)).unwrap();
        assert_eq!(order(), "cba");
        jobs.add(job("ann", "d"));
        to("b", NewPlace::Position(0)).unwrap();
        assert_eq!(order(), "bcad", "new jobs are last");
        assert_eq!(jobs.get("x").unwrap().control.place(), 0);
        for other in ["x", "b", "nothing"] {
            assert!(to("b", NewPlace::Before(other.into())).unwrap_err().contains("of the same client"), "{other}");
        }
        jobs.get("b").unwrap().end(End::Canceled);
        assert!(to("b", NewPlace::Position(0)).unwrap_err().contains("does not wait"));
        let started = jobs.get("c").unwrap();
        started.start();
        to("d", NewPlace::Position(0)).unwrap();
        assert_eq!(order(), "da");
        assert!(started.control.place() < jobs.get("d").unwrap().control.place(), "what runs stays before");
    }
}
