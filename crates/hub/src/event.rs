//! Events of a download, and the listener that receives them.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::http::Reply;

/// How often a waiting download asks the listener whether to continue.
const TICK: Duration = Duration::from_millis(50);

/// An event of a download. The listener's return value decides whether the download continues.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The list of files is known.
    Begin {
        /// Number of files.
        files: usize,
        /// Bytes of all files.
        total: u64,
        /// Bytes of the files that the cache has already.
        there: u64,
    },
    /// The download of a file starts or continues.
    File {
        /// Its name in the repository.
        name: &'a str,
        /// Its size in bytes.
        size: u64,
        /// Bytes that an earlier attempt downloaded.
        from: u64,
    },
    /// Progress over all files. It is also sent, unchanged, while no bytes arrive.
    Progress {
        /// Bytes that are in the cache.
        done: u64,
        /// Bytes of all files.
        total: u64,
    },
    /// A file is complete and has the right checksum.
    Done {
        /// Its name in the repository.
        name: &'a str,
        /// For files of official models: the model's title, and the file's name in the official repository.
        official: Option<(&'static str, &'static str)>,
    },
    /// A request failed and will be repeated.
    Retry {
        /// The file or repository.
        name: &'a str,
        /// The failure.
        problem: &'a str,
        /// The pause before the next attempt.
        pause: Duration,
    },
    /// Another process downloads this file at the moment.
    Waiting {
        /// Its name in the repository.
        name: &'a str,
    },
}

/// Receives events. `Break` stops the download.
pub type Listener<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// The listener, with the progress over all files.
pub(crate) struct Monitor<'a> {
    listener: &'a mut Listener<'a>,
    /// Bytes that are in the cache.
    pub(crate) done: u64,
    /// Bytes of all files.
    pub(crate) total: u64,
}

impl<'a> Monitor<'a> {
    /// No progress yet.
    pub(crate) fn new(listener: &'a mut Listener<'a>) -> Self {
        Self { listener, done: 0, total: 0 }
    }

    /// Sends an event to the listener.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the listener asks to stop.
    pub(crate) fn send(&mut self, event: Event<'_>) -> Result<()> {
        match (self.listener)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        }
    }

    /// Sends the progress over all files.
    pub(crate) fn send_progress(&mut self) -> Result<()> {
        let (done, total) = (self.done, self.total);
        self.send(Event::Progress { done, total })
    }

    /// Sleeps, and asks the listener regularly whether to continue.
    pub(crate) fn pause(&mut self, pause: Duration) -> Result<()> {
        let end = Instant::now() + pause;
        loop {
            self.send_progress()?;
            match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Ok(()),
                left => std::thread::sleep(left.min(TICK)),
            }
        }
    }

    /// Waits for the next part of a response, and asks the listener regularly whether to continue.
    pub(crate) fn next(&mut self, replies: &Receiver<Reply>) -> Result<Reply> {
        loop {
            match replies.recv_timeout(TICK) {
                Ok(reply) => return Ok(reply),
                Err(RecvTimeoutError::Timeout) => self.send_progress()?,
                Err(RecvTimeoutError::Disconnected) => return Ok(Reply::Failed("the request ended early".into())),
            }
        }
    }
}
