//! A thread that works while an engine runs steps: `kiln batch` and the server decode on it, and encode the next texts.

use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::error::{Error, Result};

/// A thread that makes an `R` of each `T`, in their order. It ends when this is dropped.
pub struct OverlapThread<T, R> {
    work: SyncSender<T>,
    done: Receiver<R>,
    thread: JoinHandle<()>,
}

impl<T: Send + 'static, R: Send + 'static> OverlapThread<T, R> {
    /// Starts the thread; at most `waiting` tasks wait for it.
    ///
    /// # Errors
    /// [`Error::Device`] if the system starts no thread.
    pub fn start(waiting: usize, mut run: impl FnMut(T) -> R + Send + 'static) -> Result<Self> {
        let (work, queue) = sync_channel(waiting);
        let (results, done) = channel();
        let all = move || {
            for task in queue {
                if results.send(run(task)).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("overlap".into()).spawn(all);
        let thread = thread.map_err(|error| Error::Device(format!("a thread that decodes: {error}")))?;
        Ok(Self { work, done, thread })
    }

    /// Adds a task; blocks while too many wait.
    ///
    /// # Errors
    /// [`Error::Device`] if the thread has ended.
    pub fn give(&self, task: T) -> Result<()> {
        self.work.send(task).map_err(|_| Error::Device("the thread that decodes has ended".into()))
    }

    /// Adds a task, or drops it if too many wait.
    pub fn offer(&self, task: T) {
        let _ = self.work.try_send(task);
    }

    /// The results since the last call; waits at most this time for the first one.
    pub fn done(&self, most: Duration) -> Vec<R> {
        let first = if most.is_zero() { None } else { self.done.recv_timeout(most).ok() };
        first.into_iter().chain(self.done.try_iter()).collect()
    }

    /// Waits for the end of all tasks, and returns the remaining results.
    pub fn finish(self) -> Vec<R> {
        let Self { work, done, thread } = self;
        drop(work); // the thread finds its queue closed
        if thread.join().is_err() {
            tracing::error!("the thread that decodes has failed");
        }
        done.try_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_come_in_the_order_of_the_tasks() {
        let thread = OverlapThread::start(2, |n: usize| n * n).unwrap();
        (1..=9).for_each(|n| thread.give(n).unwrap());
        let first = thread.done(Duration::from_secs(60));
        assert_eq!(first[0], 1);
        let all: Vec<usize> = first.into_iter().chain(thread.finish()).collect();
        assert_eq!(all, [1, 4, 9, 16, 25, 36, 49, 64, 81]);
    }

    #[test]
    fn a_thread_that_failed_takes_no_tasks() {
        let thread = OverlapThread::start(1, |n: usize| assert_eq!(n, 0)).unwrap();
        while thread.give(1).is_ok() {}
        assert!(thread.give(0).is_err() && thread.finish().is_empty());
    }
}
