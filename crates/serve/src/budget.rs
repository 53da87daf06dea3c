//! A budget that all clients share, and the part of it that one of them may have.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connections::CLIENT_NETWORK;

/// Units that all clients share. A client is the network whose request the task answers; other tasks have no limit of their own.
pub(crate) struct Budget {
    all: Arc<Semaphore>,
    /// The most of one client; `None` is for no limit.
    each: Option<usize>,
    /// The parts of clients that have or wait for units.
    clients: Mutex<HashMap<IpAddr, Weak<Semaphore>>>,
}

/// Units, until they are dropped.
pub(crate) struct Taken {
    all: OwnedSemaphorePermit,
    own: Option<OwnedSemaphorePermit>,
}

impl Budget {
    /// A budget of so many units, of which a client has at most `each`.
    pub(crate) fn new(units: usize, each: Option<usize>) -> Self {
        Self { all: Arc::new(Semaphore::new(units)), each, clients: Mutex::default() }
    }

    /// Waits for units: first for the client's own part, so that its other requests are not before those of others, then for
    /// all. More units than a client may have are its whole part. `None` where the server ends.
    pub(crate) async fn take(&self, units: usize) -> Option<Taken> {
        let own = match self.own() {
            Some((own, each)) => Some(own.acquire_many_owned(permits(units.min(each))).await.ok()?),
            None => None,
        };
        Some(Taken { all: self.all.clone().acquire_many_owned(permits(units)).await.ok()?, own })
    }

    /// Takes units if they are there.
    pub(crate) fn try_take(&self, units: usize) -> Option<Taken> {
        let own = match self.own() {
            Some((own, each)) => Some(own.try_acquire_many_owned(permits(units.min(each))).ok()?),
            None => None,
        };
        Some(Taken { all: self.all.clone().try_acquire_many_owned(permits(units)).ok()?, own })
    }

    /// The part of the client whose request is answered, with its units.
    fn own(&self) -> Option<(Arc<Semaphore>, usize)> {
        let each = self.each?;
        let network = CLIENT_NETWORK.try_with(|network| *network).ok()?;
        let mut clients = self.clients.lock();
        if let Some(own) = clients.get(&network).and_then(Weak::upgrade) {
            return Some((own, each));
        }
        clients.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(each));
        clients.insert(network, Arc::downgrade(&own));
        Some((own, each))
    }

    /// Units that no one has.
    #[cfg(test)]
    pub(crate) fn left(&self) -> usize {
        self.all.available_permits()
    }
}

impl Taken {
    /// Adds units of the same budget that the same client has taken.
    pub(crate) fn add(&mut self, more: Self) {
        self.all.merge(more.all);
        match (&mut self.own, more.own) {
            (Some(own), Some(more)) => own.merge(more),
            (own, more) => *own = own.take().or(more),
        }
    }
}

fn permits(units: usize) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<T>(last: u8, work: impl FnOnce() -> T) -> T {
        CLIENT_NETWORK.sync_scope([192, 0, 2, last].into(), work)
    }

    #[test]
    fn a_client_has_its_part_and_leaves_the_rest_to_others() {
        let budget = Budget::new(8, Some(4));
        let mut one = of(1, || budget.try_take(3)).unwrap();
        one.add(of(1, || budget.try_take(1)).unwrap());
        assert!(of(1, || budget.try_take(1)).is_none());
        let other = of(2, || budget.try_take(3)).unwrap();
        assert!(of(3, || budget.try_take(2)).is_none() && budget.left() == 1, "all have no more");
        drop(other);
        assert!(of(3, || budget.try_take(100)).is_none(), "it is more than there is");
        let whole = budget.try_take(4).unwrap();
        drop((one, whole));
        assert_eq!(budget.left(), 8);
        assert!(of(1, || budget.try_take(8)).is_some(), "a whole part is enough for more");
        assert!(of(4, || budget.try_take(1)).is_some());
        assert_eq!(budget.clients.lock().len(), 1, "clients without units are forgotten");
    }

    #[test]
    fn the_requests_of_one_client_do_not_wait_before_those_of_others() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let budget = Budget::new(8, Some(4));
        runtime.block_on(async {
            let held = of(1, || budget.try_take(4)).unwrap();
            let mut waiting: Vec<_> =
                (0..100).map(|_| Box::pin(CLIENT_NETWORK.scope([192, 0, 2, 1].into(), budget.take(4)))).collect();
            for one in &mut waiting {
                let is_pending = std::future::poll_fn(|cx| std::task::Poll::Ready(one.as_mut().poll(cx).is_pending()));
                assert!(is_pending.await);
            }
            assert!(CLIENT_NETWORK.scope([192, 0, 2, 2].into(), budget.take(4)).await.is_some());
            drop(held);
            assert!(waiting.swap_remove(0).await.is_some());
        });
    }
}
