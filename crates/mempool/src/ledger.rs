//! Memory that is counted and not taken: what a run would have, before it runs.
//!
//! A dry run walks through a network as the run itself would, and holds a [`Held`] for every block that the run would
//! hold, for as long. The ledger knows how much that is, and how much it was at most.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use crate::arena::Arena;
use crate::host::{HostPool, LIMIT};

/// Bytes now and at most, of all [`Held`] that came from it. Clones are the same ledger.
///
/// ```
/// use kiln_mempool::{Ledger, Rounding};
///
/// let ledger = Ledger::new(Rounding::Exact);
/// let input = ledger.hold(100);
/// let output = ledger.hold(50);
/// drop(input);
/// ledger.touch(20); // for a moment, beside the output
/// assert_eq!((ledger.now(), ledger.peak()), (50, 150));
/// # drop(output);
/// ```
#[derive(Debug, Clone)]
pub struct Ledger(Rc<Counts>);

#[derive(Debug)]
struct Counts {
    rounding: Rounding,
    now: Cell<usize>,
    peak: Cell<usize>,
    /// The host pool's own rules over addresses that nobody has: how scattered its blocks would be.
    host: Option<RefCell<Box<HostArena>>>,
}

/// What a pool makes of a request's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Nothing.
    Exact,
    /// What [`HostPool`] makes of it: a class of its policy; small requests are not the pool's.
    HostPool,
    /// What a card's driver makes of it: whole units of 512 bytes.
    Card,
}

/// A card's unit of allocation in bytes.
const CARD_UNIT: usize = 512;

/// Blocks that a run has at once: tensors, some hundred.
type HostArena = Arena<2048>;
/// More addresses than any run asks for.
const HOST_ADDRESSES: Range<usize> = 1 << 20..1 << 50;

impl Rounding {
    /// The bytes that a pool counts for a request of `bytes`.
    pub fn of(self, bytes: usize) -> usize {
        match self {
            Self::Exact => bytes,
            Self::HostPool => HostPool::block_size(bytes),
            Self::Card => bytes.next_multiple_of(CARD_UNIT),
        }
    }
}

impl Ledger {
    /// A ledger of nothing.
    pub fn new(rounding: Rounding) -> Self {
        let host = (rounding == Rounding::HostPool).then(|| {
            let mut arena = Box::new(HostArena::new());
            arena.add(HOST_ADDRESSES);
            RefCell::new(arena)
        });
        Self(Rc::new(Counts { rounding, now: Cell::new(0), peak: Cell::new(0), host }))
    }

    /// A block of `bytes`, until it is dropped.
    pub fn hold(&self, bytes: usize) -> Held {
        let place = self.0.host.as_ref().filter(|_| bytes >= LIMIT);
        let place = place.and_then(|arena| arena.borrow_mut().allocate(HostPool::policy(), bytes));
        let bytes = self.0.rounding.of(bytes);
        let now = self.0.now.get().saturating_add(bytes);
        self.0.now.set(now);
        self.0.peak.set(self.0.peak.get().max(now));
        Held { counts: self.0.clone(), bytes, place: place.map(|block| block.addresses.start) }
    }

    /// A block of `bytes` that is freed at once: what a call needs while it runs.
    pub fn touch(&self, bytes: usize) {
        drop(self.hold(bytes));
    }

    /// Bytes that are held.
    pub fn now(&self) -> usize {
        self.0.now.get()
    }

    /// The most bytes that were held at once, since the ledger was made or [`Ledger::reset_peak`].
    pub fn peak(&self) -> usize {
        self.0.peak.get()
    }

    /// The most bytes that the pool would have kept since then: more than [`Ledger::peak`] where no free block served a
    /// request. The rules of a card's pool are its driver's own; there, and for exact sizes, this is the peak.
    pub fn peak_reserved(&self) -> usize {
        self.0.host.as_ref().map_or(self.peak(), |arena| arena.borrow().statistics().peak_reserved)
    }

    /// Gives back what waits, as [`HostPool::trim`] does.
    pub fn trim(&self, threshold: f64) {
        let Some(mut arena) = self.0.host.as_ref().map(RefCell::borrow_mut) else { return };
        if !arena.statistics().exceeds(threshold) {
            return;
        }
        while let Some(addresses) = arena.take_waiting() {
            arena.put_back(addresses.start, true);
        }
    }

    /// Starts the peaks anew, from what is held now.
    pub fn reset_peak(&self) {
        self.0.peak.set(self.0.now.get());
        self.0.host.iter().for_each(|arena| arena.borrow_mut().reset_peaks());
    }
}

/// A block that a ledger counts while this lives.
#[derive(Debug)]
pub struct Held {
    counts: Rc<Counts>,
    bytes: usize,
    /// Where it would be.
    place: Option<usize>,
}

impl Held {
    /// The block's size in bytes, rounded.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counts.now.set(self.counts.now.get().saturating_sub(self.bytes));
        if let (Some(place), Some(arena)) = (self.place, &self.counts.host) {
            arena.borrow_mut().free(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_stays_and_can_be_started_anew() {
        let ledger = Ledger::new(Rounding::Exact);
        let first = ledger.hold(10);
        drop(ledger.hold(5));
        assert_eq!((ledger.now(), ledger.peak(), first.bytes()), (10, 15, 10));
        ledger.reset_peak();
        ledger.clone().touch(2);
        assert_eq!(ledger.peak(), 12);
        drop(first);
        assert_eq!(ledger.now(), 0);
    }

    #[test]
    fn sizes_are_rounded_as_pools_round_them() {
        assert_eq!(Rounding::Card.of(513), 1024);
        assert_eq!(Rounding::HostPool.of(100), 0, "the system's");
        let class = Rounding::HostPool.of((1 << 20) + 1);
        assert!(class > 1 << 20 && class < (1 << 20) + (1 << 14), "{class}");
    }

    #[test]
    fn what_no_free_block_serves_is_kept_beside() {
        let ledger = Ledger::new(Rounding::HostPool);
        let blocks = [1, 1, 1].map(|mib| ledger.hold(mib << 20));
        let [below, between, _above] = blocks;
        drop((below, _above));
        let large = ledger.hold(2 << 20); // two holes of one
        assert_eq!((ledger.peak(), ledger.peak_reserved()), (3 << 20, 4 << 20));
        drop((between, large));
        ledger.trim(0.5);
        ledger.reset_peak();
        assert_eq!((ledger.peak(), ledger.peak_reserved()), (0, 0));
    }
}
