//! A thread that prepares and captures runs, and lives as long as their graphs.
//!
//! Constants that candle's operators copy to the GPU at every call (strides, indices: some bytes each) must not be
//! copied during a capture. On request candle keeps such copies, until the thread that made them ends. On the caller's
//! thread they would outlive engines, and each would keep part of a pool of 32 MiB. So each recording has a thread of
//! its own, whose end frees them.

use std::cell::RefCell;
use std::thread::{Builder, JoinHandle};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// The thread, and a pool that runs closures on it.
#[derive(Debug)]
pub(super) struct Recorder {
    /// Dropped before the thread is joined.
    pool: Option<ThreadPool>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts a thread.
    ///
    /// # Errors
    /// [`Error::Driver`] where the system cannot start one.
    pub(super) fn start() -> Result<Self> {
        let started = RefCell::new(None);
        let pool = ThreadPoolBuilder::new()
            .num_threads(1)
            .spawn_handler(|thread| {
                let name = "kiln-record".to_string();
                *started.borrow_mut() = Some(Builder::new().name(name).spawn(|| thread.run())?);
                Ok(())
            })
            .build()
            .map_err(|error| Error::Driver(format!("starting a thread for recording: {error}")))?;
        Ok(Self { pool: Some(pool), thread: started.into_inner() })
    }

    /// Runs `run` on the thread and waits for its end.
    pub(super) fn run<T: Send>(&self, run: impl FnOnce() -> T + Send) -> T {
        match &self.pool {
            Some(pool) => pool.install(run),
            None => run(),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.pool = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the recording thread of a step has panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn thread_local_values_are_dropped_with_the_recorder() {
        static GONE: AtomicBool = AtomicBool::new(false);
        struct Kept;
        impl Drop for Kept {
            fn drop(&mut self) {
                GONE.store(true, Ordering::SeqCst);
            }
        }
        thread_local! {
            static KEPT: Cell<Option<Kept>> = const { Cell::new(None) };
        }
        let recorder = Recorder::start().unwrap();
        let here = std::thread::current().id();
        assert_ne!(recorder.run(|| std::thread::current().id()), here);
        recorder.run(|| KEPT.set(Some(Kept)));
        assert!(recorder.run(|| KEPT.take().map(|kept| KEPT.set(Some(kept))).is_some()), "it is one thread");
        assert!(!GONE.load(Ordering::SeqCst));
        drop(recorder);
        assert!(GONE.load(Ordering::SeqCst));
    }
}
