//! Memory accounting without memory: the memory of a run, computed before it runs.
//!
//! A dry run walks through a network like the run itself, and keeps a [`Held`] for every block that the run would have,
//! for as long. The ledger computes the total and its peak.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use crate::arena::Arena;
use crate::host::{HostPool, LIMIT};

/// The current and the peak bytes of all [`Held`] of this ledger. Clones are the same ledger.
///
/// ```
/// use kiln_mempool::{Ledger, Rounding};
///
/// let ledger = Ledger::new(Rounding::Exact);
/// let input = ledger.hold(100);
/// let output = ledger.hold(50);
/// drop(input);
/// ledger.touch(20); // for a moment, in addition to the output
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
    /// The host pool's policy over imaginary addresses: computes the fragmentation of its blocks.
    host: Option<RefCell<Box<HostArena>>>,
}

/// How a pool rounds the size of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// Not at all.
    Exact,
    /// Like [`HostPool`]: to a size class of its policy. Small requests are not the pool's.
    HostPool,
    /// Like CUDA's driver: to multiples of 512 bytes.
    Gpu,
}

/// The driver's allocation unit in bytes.
const GPU_UNIT: usize = 512;

/// The maximum of blocks at a time: a run has some hundred tensors.
type HostArena = Arena<2048>;
/// More addresses than any run needs.
const HOST_ADDRESSES: Range<usize> = 1 << 20..1 << 50;

impl Rounding {
    /// The bytes that a pool counts for a request of `bytes`.
    pub fn of(self, bytes: usize) -> usize {
        match self {
            Self::Exact => bytes,
            Self::HostPool => HostPool::block_size(bytes),
            Self::Gpu => bytes.next_multiple_of(GPU_UNIT),
        }
    }
}

impl Ledger {
    /// An empty ledger.
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

    /// Counts a block of `bytes` that is freed at once: the workspace of a call.
    pub fn touch(&self, bytes: usize) {
        drop(self.hold(bytes));
    }

    /// Bytes in use.
    pub fn now(&self) -> usize {
        self.0.now.get()
    }

    /// The peak of the bytes in use since the ledger was made or [`Ledger::reset_peak`].
    pub fn peak(&self) -> usize {
        self.0.peak.get()
    }

    /// The peak of the bytes that the pool would have reserved since then. It is larger than [`Ledger::peak`] where no
    /// free block served a request. The policy of a GPU's pool is the driver's; there, and for exact sizes, this is the
    /// peak.
    pub fn peak_reserved(&self) -> usize {
        self.0.host.as_ref().map_or(self.peak(), |arena| arena.borrow().statistics().peak_reserved)
    }

    /// Releases unused memory, as [`HostPool::trim`] does.
    pub fn trim(&self, threshold: f64) {
        let Some(mut arena) = self.0.host.as_ref().map(RefCell::borrow_mut) else { return };
        if !arena.statistics().exceeds(threshold) {
            return;
        }
        while let Some(addresses) = arena.take_unused() {
            arena.put_back(addresses.start, true);
        }
    }

    /// Resets the peaks to the current values.
    pub fn reset_peak(&self) {
        self.0.peak.set(self.0.now.get());
        self.0.host.iter().for_each(|arena| arena.borrow_mut().reset_peaks());
    }
}

/// A block that its ledger counts while this value lives.
#[derive(Debug)]
pub struct Held {
    counts: Rc<Counts>,
    bytes: usize,
    /// Its imaginary address.
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
    fn the_peak_stays_until_it_is_reset() {
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
    fn sizes_are_rounded_like_the_pools_round_them() {
        assert_eq!(Rounding::Gpu.of(513), 1024);
        assert_eq!(Rounding::HostPool.of(100), 0, "the system's");
        let class = Rounding::HostPool.of((1 << 20) + 1);
        assert!(class > 1 << 20 && class < (1 << 20) + (1 << 14), "{class}");
    }

    #[test]
    fn fragmentation_raises_the_reserved_peak() {
        let ledger = Ledger::new(Rounding::HostPool);
        let blocks = [1, 1, 1].map(|mib| ledger.hold(mib << 20));
        let [below, between, _above] = blocks;
        drop((below, _above));
        let large = ledger.hold(2 << 20); // two free blocks of one
        assert_eq!((ledger.peak(), ledger.peak_reserved()), (3 << 20, 4 << 20));
        drop((between, large));
        ledger.trim(0.5);
        ledger.reset_peak();
        assert_eq!((ledger.peak(), ledger.peak_reserved()), (0, 0));
    }
}
