//! Work on another thread while the next pictures are drawn: texts that come are encoded, what is drawn is decoded.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::journal::Seconds;
use crate::error::{Error, Result};
use crate::pipeline::decoder::Widened;
use crate::pipeline::overlap::NetworksBeside;
use crate::pipeline::run::{Drawn, Undecoded};
use crate::resolved::Job;
use crate::settings::Origin;

/// Orders that may wait, the pictures of some batches. Who draws waits where there are more: decoding is the slower part
/// then.
const WAITING: usize = 32;

/// A picture whose steps are done.
pub(crate) struct Order {
    /// Whose it is, for who gave it.
    pub(crate) id: usize,
    pub(crate) job: Job,
    pub(crate) origin: Arc<Origin>,
    pub(crate) picture: Undecoded,
    /// How long it took so far.
    pub(crate) seconds: Seconds,
}

/// What the thread has done.
pub(crate) enum Done {
    /// Texts were encoded in this time.
    Encoded(Duration),
    /// What became of an order.
    Decoded(Box<Decoded>),
}

/// What became of an order.
pub(crate) struct Decoded {
    pub(crate) order: Order,
    pub(crate) result: Result<Drawn>,
    /// Types that were too narrow on the way.
    pub(crate) widened: Vec<Widened>,
}

enum Task {
    /// So many texts of those that are foreseen.
    Encode(usize),
    Decode(Box<Order>),
}

/// A thread beside the engine's.
pub(crate) struct Aside {
    tasks: SyncSender<(Task, NetworksBeside)>,
    done: Receiver<Done>,
    thread: JoinHandle<()>,
}

impl Aside {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Device`] where there is none to be had.
    pub(crate) fn start() -> Result<Self> {
        let (tasks, queue) = sync_channel(WAITING);
        let (tell, done) = channel();
        let thread = std::thread::Builder::new().name("beside".into()).spawn(move || work(queue, &tell));
        let thread = thread.map_err(|error| Error::Device(format!("a thread beside the steps: {error}")))?;
        Ok(Self { tasks, done, thread })
    }

    /// Has a picture decoded; waits while too many wait.
    pub(crate) fn decode(&self, order: Order, beside: NetworksBeside) -> Result<()> {
        let ended = |_| Error::Device("the thread beside the steps has ended".into());
        self.tasks.send((Task::Decode(Box::new(order)), beside)).map_err(ended)
    }

    /// Has so many of the texts encoded that are foreseen, if the thread has time for them.
    pub(crate) fn encode(&self, texts: usize, beside: NetworksBeside) {
        let _ = self.tasks.try_send((Task::Encode(texts), beside)); // what is not encoded here is encoded when it is needed
    }

    /// What was done since this was asked before.
    pub(crate) fn news(&self) -> Vec<Done> {
        self.done.try_iter().collect()
    }

    /// Waits for the thread, and gives the rest.
    pub(crate) fn finish(self) -> Vec<Done> {
        let Self { tasks, done, thread } = self;
        drop(tasks); // the thread finds its queue closed
        if thread.join().is_err() {
            tracing::error!("the thread beside the steps has failed");
        }
        done.try_iter().collect()
    }
}

fn work(queue: Receiver<(Task, NetworksBeside)>, tell: &Sender<Done>) {
    for (task, beside) in queue {
        let done = match task {
            Task::Encode(texts) => Done::Encoded(encode(texts, &beside)),
            Task::Decode(order) => Done::Decoded(Box::new(decode(*order, &beside))),
        };
        if tell.send(done).is_err() {
            return;
        }
    }
}

/// Text by text: the engine may come between.
fn encode(texts: usize, beside: &NetworksBeside) -> Duration {
    let start = Instant::now();
    for _ in 0..texts {
        match beside.encode_next() {
            Ok(true) => std::thread::yield_now(),
            Ok(false) => break,
            Err(error) => {
                tracing::debug!("encoding beside the steps: {error}; it is tried again when the text is needed");
                break;
            }
        }
    }
    start.elapsed()
}

fn decode(order: Order, beside: &NetworksBeside) -> Decoded {
    let mut widened = Vec::new();
    let result = beside.decode(&order.picture, &mut |news| {
        widened.push(news);
        Ok(())
    });
    Decoded { order, result, widened }
}
