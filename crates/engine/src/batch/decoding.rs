//! Decoding on another thread, while the next pictures are drawn.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;

use super::journal::Seconds;
use crate::decoder::Widened;
use crate::engine::{Beside, Drawn, Undecoded};
use crate::error::{Error, Result};
use crate::resolved::Job;
use crate::settings::Origin;

/// Pictures that may wait to be decoded. Who draws waits where there are more: decoding is the slower part then.
const WAITING: usize = 8;

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

/// What became of an order.
pub(crate) struct Decoded {
    pub(crate) order: Order,
    pub(crate) result: Result<Drawn>,
    /// Types that were too narrow on the way.
    pub(crate) widened: Vec<Widened>,
}

/// A thread that decodes.
pub(crate) struct Decoding {
    orders: SyncSender<(Order, Beside)>,
    decoded: Receiver<Decoded>,
    thread: JoinHandle<()>,
}

impl Decoding {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Device`] where there is none to be had.
    pub(crate) fn start() -> Result<Self> {
        let (orders, queue) = sync_channel::<(Order, Beside)>(WAITING);
        let (tell, decoded) = channel();
        let work = move || {
            for (order, beside) in queue {
                let mut widened = Vec::new();
                let result = beside.decode(&order.picture, &mut |news| {
                    widened.push(news);
                    Ok(())
                });
                if tell.send(Decoded { order, result, widened }).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("decode".into()).spawn(work);
        let thread = thread.map_err(|error| Error::Device(format!("a thread that decodes: {error}")))?;
        Ok(Self { orders, decoded, thread })
    }

    /// Has a picture decoded; waits while too many wait.
    pub(crate) fn give(&self, order: Order, beside: Beside) -> Result<()> {
        let ended = |_| Error::Device("the thread that decodes has ended".into());
        self.orders.send((order, beside)).map_err(ended)
    }

    /// What was decoded since this was asked before.
    pub(crate) fn news(&self) -> Vec<Decoded> {
        self.decoded.try_iter().collect()
    }

    /// Waits for the thread, and gives the rest.
    pub(crate) fn finish(self) -> Vec<Decoded> {
        let Self { orders, decoded, thread } = self;
        drop(orders); // the thread finds its queue closed
        if thread.join().is_err() {
            tracing::error!("the thread that decodes pictures has failed");
        }
        decoded.try_iter().collect()
    }
}
