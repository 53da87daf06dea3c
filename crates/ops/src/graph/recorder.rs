//! A thread that prepares and records, and lives as long as what it recorded.
//!
//! What candle's operators copy to a card anew at every call (strides, indices: some bytes each) must not be copied while
//! a run is recorded. candle keeps such copies where it is asked to, for as long as the thread lives that asked. On the
//! caller's thread they would outlive engines, and each hold pieces of a pool of 32 MiB. So the thread is the recording's
//! own, and its end frees them.

use std::cell::RefCell;
use std::thread::{Builder, JoinHandle};

use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::error::{Error, Result};

/// The thread.
#[derive(Debug)]
pub(super) struct Recorder {
    /// Gone before the thread is waited for.
    pool: Option<ThreadPool>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts a thread.
    ///
    /// # Errors
    /// [`Error::Driver`] where the system gives none.
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
            .map_err(|error| Error::Driver(format!("a thread for recording: {error}")))?;
        Ok(Self { pool: Some(pool), thread: started.into_inner() })
    }

    /// Does `run` there, and waits for its end.
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
            tracing::warn!("the thread that recorded a step has failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn what_the_thread_keeps_goes_with_it() {
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
