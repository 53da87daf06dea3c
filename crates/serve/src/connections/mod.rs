//! Connections: how many there may be, whose they are, and which one is closed for another.
//!
//! Each address has a share of the connections and of the bytes of answers that are not read yet, so that one client keeps no other
//! from an answer. Where a share is used up, a connection that waits for its next request is closed first.

mod accept;
mod answers;
mod leftover;
mod peer;
mod requests;
mod stream;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::Notify;

pub(crate) use accept::{LAST_ANSWERS, serve};
pub(crate) use answers::bounded;
pub(crate) use peer::{CLIENT_NETWORK, Peer};
pub(crate) use requests::Kept;

/// Connections at once.
pub(crate) const CONNECTIONS: usize = 1024;
/// The bytes of answers that all clients together have not read yet; one answer of each address is held all the same.
const MOST_HELD: usize = 256 << 20;
/// A connection whose client has read nothing for this time is closed where its address has no room for another one.
const STALLED: Duration = Duration::from_secs(2);

/// All connections.
pub(crate) struct Connections {
    /// The most of one address; 0 is for no limit.
    per_address: usize,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    next: u64,
    connections: HashMap<u64, Arc<Connection>>,
    /// By their networks. A peer without connections is not here.
    peers: HashMap<IpAddr, Arc<Peer>>,
}

/// A connection.
pub(crate) struct Connection {
    number: u64,
    pub(crate) peer: Arc<Peer>,
    activity: Mutex<Activity>,
    closing: Notify,
}

/// The state of a connection.
struct Activity {
    /// Requests that are not answered: none or one.
    requests: usize,
    /// Since when it waits for a request, if it has none.
    idle: Instant,
    /// Since when its client reads nothing of what is to be written.
    stalled: Option<Instant>,
}

/// A connection in the list, for as long as it is open.
pub(crate) struct Entered {
    all: Arc<Connections>,
    pub(crate) connection: Arc<Connection>,
}

/// Why a connection is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Its address has its share.
    OfAddress,
    /// All are in use.
    OfServer,
}

impl Connections {
    /// No connections; an address may have `per_address` of them, or all if that is 0.
    pub(crate) fn new(per_address: usize) -> Arc<Self> {
        Arc::new(Self { per_address, open: Mutex::default() })
    }

    /// Adds a connection. If all are in use, one that waits for a request is closed for it: one of its own address, or of the
    /// address that has the most.
    ///
    /// # Errors
    /// [`NoRoom`] if none waits.
    pub(crate) fn enter(self: &Arc<Self>, address: IpAddr) -> Result<Entered, NoRoom> {
        let network = peer::network_of(address);
        let mut open = self.open.lock();
        let own = open.peers.get(&network).map_or(0, |peer| peer.connections());
        if self.per_address > 0 && own >= self.per_address && !open.close_one(Some(network)) {
            return Err(NoRoom::OfAddress);
        }
        if open.connections.len() >= CONNECTIONS && !open.close_one(None) {
            return Err(NoRoom::OfServer);
        }
        let share = match self.per_address {
            0 => MOST_HELD,
            most => MOST_HELD / CONNECTIONS * most.min(CONNECTIONS),
        };
        let peer = open.peers.entry(network).or_insert_with(|| Peer::new(network, share)).clone();
        peer.opened();
        let number = open.next;
        open.next += 1;
        let activity = Mutex::new(Activity { requests: 0, idle: Instant::now(), stalled: None });
        let connection = Arc::new(Connection { number, peer, activity, closing: Notify::new() });
        open.connections.insert(number, connection.clone());
        drop(open);
        Ok(Entered { all: self.clone(), connection })
    }

    /// Closes a connection that waits for a request, of the address that has the most. False if none waits.
    pub(crate) fn close_one(&self) -> bool {
        self.open.lock().close_one(None)
    }
}

impl Open {
    /// Closes the connection that has waited for its next request for longest, or else one whose client does not read: of this
    /// network, or of that which has the most connections with such ones. It counts no more from now on.
    fn close_one(&mut self, network: Option<IpAddr>) -> bool {
        let now = Instant::now();
        let all = self.connections.values().filter(|one| network.is_none_or(|network| one.peer.network == network));
        let open = all.filter_map(|one| Some((one.spare_since(now)?, one)));
        // `min` takes the address with the most first.
        let spare = open
            .min_by_key(|((is_stalled, since), one)| (std::cmp::Reverse(one.peer.connections()), *is_stalled, *since));
        let Some(number) = spare.map(|(_, one)| one.number) else { return false };
        if let Some(connection) = self.remove(number) {
            connection.closing.notify_one();
        }
        true
    }

    fn remove(&mut self, number: u64) -> Option<Arc<Connection>> {
        let connection = self.connections.remove(&number)?;
        if connection.peer.closed() == 0 {
            self.peers.remove(&connection.peer.network);
        }
        Some(connection)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.all.open.lock().remove(self.connection.number);
    }
}

impl Connection {
    /// Whether it could be closed for another one, and since when: it waits for a request, or, which is `true`, its client does
    /// not read.
    fn spare_since(&self, now: Instant) -> Option<(bool, Instant)> {
        let activity = self.activity.lock();
        if activity.requests == 0 && activity.stalled.is_none() {
            return Some((false, activity.idle));
        }
        let stalled = activity.stalled.filter(|since| now.saturating_duration_since(*since) >= STALLED);
        stalled.map(|since| (true, since))
    }

    /// Waits until it is to be closed for another one.
    pub(crate) async fn closing(&self) {
        self.closing.notified().await;
    }

    fn change(&self, change: impl FnOnce(&mut Activity)) {
        change(&mut self.activity.lock());
    }

    /// A request has come.
    fn begin(&self) {
        self.change(|activity| activity.requests += 1);
    }

    /// The answer to a request was handed on.
    fn end(&self) {
        self.change(|activity| {
            activity.requests = activity.requests.saturating_sub(1);
            activity.idle = Instant::now();
        });
    }

    /// Whether a request is not answered.
    fn is_busy(&self) -> bool {
        self.activity.lock().requests > 0
    }

    /// Says whether the client reads what is to be written.
    fn set_stalled(&self, is_stalled: bool) {
        self.change(|activity| {
            activity.stalled = is_stalled.then(Instant::now);
            activity.idle = Instant::now();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn is_closing(entered: &Entered) -> bool {
        !entered.all.open.lock().connections.contains_key(&entered.connection.number)
    }

    #[test]
    fn the_connection_that_waits_for_longest_is_closed_for_another_of_its_address() {
        let all = Connections::new(3);
        let mut own: Vec<Entered> = (0..3).map(|_| all.enter(address(1)).unwrap()).collect();
        let other = all.enter(address(2)).unwrap();
        own[0].connection.begin();
        own.push(all.enter(address(1)).unwrap());
        assert_eq!(own.iter().map(is_closing).collect::<Vec<_>>(), [false, true, false, false]);
        own.iter().for_each(|one| one.connection.begin());
        assert_eq!(all.enter(address(1)).err(), Some(NoRoom::OfAddress));
        assert!(!is_closing(&other) && all.enter(address(2)).is_ok());
        own[2].connection.end();
        assert!(all.enter(address(1)).is_ok() && is_closing(&own[2]), "it waits again");
        drop((own, other));
        assert!(all.open.lock().peers.is_empty() && all.open.lock().connections.is_empty());
    }

    #[test]
    fn the_address_with_the_most_gives_one_up_where_all_are_in_use() {
        let all = Connections::new(0);
        let few: Vec<Entered> = (0..4).map(|_| all.enter(address(1)).unwrap()).collect();
        let many: Vec<Entered> = (4..CONNECTIONS).map(|_| all.enter(address(2)).unwrap()).collect();
        let next = all.enter(address(3)).unwrap();
        assert!(is_closing(&many[0]) && !few.iter().chain([&next]).any(is_closing));
        few.iter().chain(&many).chain([&next]).for_each(|one| one.connection.begin());
        assert_eq!(all.enter(address(4)).err(), Some(NoRoom::OfServer));
    }

    #[test]
    fn a_client_that_does_not_read_gives_its_connection_up() {
        let all = Connections::new(1);
        let entered = all.enter(address(1)).unwrap();
        entered.connection.begin();
        entered.connection.set_stalled(true);
        assert_eq!(all.enter(address(1)).err(), Some(NoRoom::OfAddress), "it may still read");
        let spare = entered.connection.spare_since(Instant::now() + STALLED);
        assert!(spare.is_some_and(|(is_stalled, _)| is_stalled));
        entered.connection.set_stalled(false);
        assert_eq!(entered.connection.spare_since(Instant::now() + STALLED), None);
    }
}
