//! An address and what its connections take together.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Semaphore, SemaphorePermit};

use super::MOST_HELD;

tokio::task_local! {
    /// The network of the client whose request a task answers.
    pub(crate) static CLIENT_NETWORK: IpAddr;
}

/// Bytes that all peers together have not read.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// An address; of IPv6 the network of 64 bits, which one client has as a whole.
pub(crate) struct Peer {
    pub(super) network: IpAddr,
    connections: AtomicUsize,
    /// Bytes of answers that are not read yet.
    held: AtomicUsize,
    /// The most of them.
    share: usize,
    /// Turns of requests that only read, of which it may have thousands in its connections: others' requests come between.
    turns: Semaphore,
}

/// Requests of an address that only read and are answered at the same time.
const READ_AT_ONCE: usize = 4;

/// Bytes of an answer, until they are written or dropped.
pub(super) struct Claim {
    peer: Arc<Peer>,
    bytes: usize,
}

impl Peer {
    pub(super) fn new(network: IpAddr, share: usize) -> Arc<Self> {
        let turns = Semaphore::new(READ_AT_ONCE);
        Arc::new(Self { network, connections: AtomicUsize::new(0), held: AtomicUsize::new(0), share, turns })
    }

    /// Waits for the turn of a request that only reads. It ends when the result is dropped.
    pub(super) async fn turn(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    pub(super) fn opened(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Says how many are left.
    pub(super) fn closed(&self) -> usize {
        self.connections.fetch_sub(1, Ordering::Relaxed).saturating_sub(1)
    }

    /// Whether it has to read its answers before it gets more.
    pub(super) fn is_full(&self) -> bool {
        self.held.load(Ordering::Relaxed) >= self.share
    }

    /// Takes room for the bytes of an answer. A peer that has read all of its answers gets any.
    pub(super) fn claim(self: &Arc<Self>, bytes: usize) -> Option<Claim> {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed);
        let all = HELD.fetch_add(bytes, Ordering::Relaxed);
        let claim = Claim { peer: self.clone(), bytes };
        let fits = |held: usize, most: usize| held.saturating_add(bytes) <= most;
        (held == 0 || (fits(held, self.share) && fits(all, MOST_HELD))).then_some(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.peer.held.fetch_sub(self.bytes, Ordering::Relaxed);
        HELD.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The network that counts as one client.
pub(super) fn network_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_its_share_of_answers_and_always_one() {
        let peer = Peer::new([192, 0, 2, 1].into(), 100);
        let large = peer.claim(1000).unwrap();
        assert!(peer.is_full() && peer.claim(1).is_none());
        drop(large);
        let some: Vec<Claim> = (0..4).map(|_| peer.claim(25).unwrap()).collect();
        assert!(peer.is_full() && peer.claim(1).is_none());
        drop(some);
        assert!(!peer.is_full() && peer.held.load(Ordering::Relaxed) == 0);
    }

    #[test]
    fn one_network_of_ipv6_is_one_client() {
        let network = |text: &str| network_of(text.parse().unwrap());
        assert_eq!(network("2001:db8::1"), network("2001:db8::ffff:1"));
        assert_ne!(network("2001:db8::1"), network("2001:db8:0:1::1"));
        assert_eq!(network("::ffff:192.0.2.1"), network("192.0.2.1"));
        assert_ne!(network("192.0.2.1"), network("192.0.2.2"));
    }
}
