//! A journal to which several threads append at the same time.
//!
//! A line is on the disk when [`SharedJournal::append`] returns. Lines that come while a thread writes wait, and the next thread writes all
//! of them with one call: the threads wait for the disk together, not one after another.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::journal::{Journal, Line};
use crate::error::{Error, Result};

/// The result of writing some lines, for each of the threads that wait for it.
type Outcome = std::result::Result<(), Arc<std::io::Error>>;

/// A journal of a run.
#[derive(Debug)]
pub(crate) struct SharedJournal {
    journal: Journal,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The lines that the next call writes, and its result.
    lines: Vec<Line>,
    outcome: Arc<OnceLock<Outcome>>,
    is_writing: bool,
    /// Calls so far.
    writes: usize,
}

impl SharedJournal {
    pub(crate) fn new(journal: Journal) -> Self {
        Self { journal, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Appends a line, which is on disk when this returns.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Files`], for all lines that were to be written together.
    pub(crate) fn append(&self, line: Line) -> Result<()> {
        let mut state = self.state.lock();
        state.lines.push(line);
        let outcome = state.outcome.clone();
        loop {
            if let Some(outcome) = outcome.get() {
                let error = |error: Arc<std::io::Error>| std::io::Error::new(error.kind(), error);
                return outcome.clone().map_err(error).map_err(Error::write(self.journal.path()));
            }
            if state.is_writing {
                self.changed.wait(&mut state);
            } else {
                self.write(&mut state);
            }
        }
    }

    /// Writes what waits. Others may add lines meanwhile, which the next call writes.
    fn write(&self, state: &mut MutexGuard<'_, State>) {
        let (lines, outcome) = (std::mem::take(&mut state.lines), std::mem::take(&mut state.outcome));
        (state.is_writing, state.writes) = (true, state.writes + 1);
        let written = MutexGuard::unlocked(state, || self.journal.write(&lines));
        let _ = outcome.set(written.map_err(Arc::new)); // it is set here alone
        state.is_writing = false;
        self.changed.notify_all();
    }

    /// [`Journal::check_place`].
    pub(crate) fn check_place(&self) -> Result<()> {
        self.journal.check_place()
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        self.journal.path()
    }

    /// How often it was written.
    pub(crate) fn writes(&self) -> usize {
        self.state.lock().writes
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::journal::{Made, Seconds};

    fn line(key: String) -> Line {
        Line::Made { made: key, made_file: Made { bytes: 1, seconds: Seconds::default() }, part: None }
    }

    /// The keys that a journal has as made.
    fn made(path: &Path) -> Vec<String> {
        let records = Journal::peek(path).unwrap();
        let mut keys: Vec<String> =
            records.into_iter().filter(|(_, one)| one.made.is_some()).map(|(key, _)| key).collect();
        keys.sort();
        keys
    }

    #[test]
    fn lines_that_come_while_a_thread_writes_are_written_together() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let journal = SharedJournal::new(Journal::open(&path).unwrap().0);
        journal.append(line("first".into())).unwrap();
        journal.state.lock().is_writing = true; // as if another thread wrote
        std::thread::scope(|scope| {
            for i in 0..4 {
                let journal = &journal;
                scope.spawn(move || journal.append(line(format!("{i}"))).unwrap());
            }
            let start = Instant::now();
            while journal.state.lock().lines.len() < 4 {
                assert!(start.elapsed() < Duration::from_secs(120), "not all have come");
                std::thread::yield_now();
            }
            assert_eq!(made(&path), ["first"], "nothing returns before it is written");
            journal.state.lock().is_writing = false;
            journal.changed.notify_all();
        });
        assert_eq!((made(&path), journal.writes()), (["0", "1", "2", "3", "first"].map(String::from).to_vec(), 2));
    }

    #[test]
    fn many_threads_lose_no_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let journal = SharedJournal::new(Journal::open(&path).unwrap().0);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let journal = &journal;
                scope.spawn(move || {
                    for i in 0..25 {
                        journal.append(line(format!("{thread}-{i:02}"))).unwrap();
                    }
                });
            }
        });
        assert_eq!(made(&path).len(), 200);
        assert!((25..=200).contains(&journal.writes()), "{}", journal.writes());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn an_error_of_the_disk_is_that_of_all_its_lines() {
        let journal = SharedJournal::new(Journal::full());
        let error = journal.append(line("a".into())).unwrap_err();
        let Error::Engine(kiln_engine::Error::Files(kiln_files::Error::Write { source, .. })) = error else {
            panic!("{error}")
        };
        assert_eq!(source.kind(), std::io::ErrorKind::StorageFull);
    }
}
