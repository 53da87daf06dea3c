//! What is told while files are fetched.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::http::Piece;

/// How often whoever waits is asked whether to go on.
const TICK: Duration = Duration::from_millis(50);

/// News of a pull. Whoever hears them says whether to go on.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// What is wanted is known.
    Begin {
        /// The files.
        files: usize,
        /// Their bytes.
        total: u64,
        /// Those of them that are in the cache already.
        there: u64,
    },
    /// A file begins, or goes on.
    File {
        /// Its name in the repository.
        name: &'a str,
        /// Its bytes.
        size: u64,
        /// Those of them that an earlier try brought.
        from: u64,
    },
    /// So many bytes of all files are there. Also told, unchanged, while nothing comes.
    Progress {
        /// Bytes that are there.
        done: u64,
        /// Bytes of all files.
        total: u64,
    },
    /// A file is there and is what its checksum says.
    Done {
        /// Its name in the repository.
        name: &'a str,
        /// What it is known as: a model's title and the file's name in its official repository.
        official: Option<(&'static str, &'static str)>,
    },
    /// Something failed and is tried again.
    Retry {
        /// What.
        name: &'a str,
        /// Why.
        problem: &'a str,
        /// After how long.
        pause: Duration,
    },
    /// Another process fetches this file now.
    Waiting {
        /// Its name in the repository.
        name: &'a str,
    },
}

/// Who hears the news.
pub type Listener<'a> = dyn FnMut(Event<'_>) -> ControlFlow<()> + 'a;

/// The listener, and how far all files are.
pub(crate) struct Watch<'a> {
    listener: &'a mut Listener<'a>,
    /// Bytes that are there.
    pub(crate) done: u64,
    /// Bytes of all files.
    pub(crate) total: u64,
}

impl<'a> Watch<'a> {
    /// Nothing is known yet.
    pub(crate) fn new(listener: &'a mut Listener<'a>) -> Self {
        Self { listener, done: 0, total: 0 }
    }

    /// Tells the listener.
    ///
    /// # Errors
    /// [`Error::Interrupted`] where that says so.
    pub(crate) fn tell(&mut self, event: Event<'_>) -> Result<()> {
        match (self.listener)(event) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(Error::Interrupted),
        }
    }

    /// Tells how far all files are.
    pub(crate) fn progress(&mut self) -> Result<()> {
        let (done, total) = (self.done, self.total);
        self.tell(Event::Progress { done, total })
    }

    /// Waits, and asks now and then whether to go on.
    pub(crate) fn pause(&mut self, pause: Duration) -> Result<()> {
        let end = Instant::now() + pause;
        loop {
            self.progress()?;
            match end.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return Ok(()),
                left => std::thread::sleep(left.min(TICK)),
            }
        }
    }

    /// The next piece of an answer.
    pub(crate) fn next(&mut self, pieces: &Receiver<Piece>) -> Result<Piece> {
        loop {
            match pieces.recv_timeout(TICK) {
                Ok(piece) => return Ok(piece),
                Err(RecvTimeoutError::Timeout) => self.progress()?,
                Err(RecvTimeoutError::Disconnected) => return Ok(Piece::Failed("the request ended early".into())),
            }
        }
    }
}
