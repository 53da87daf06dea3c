//! Models of Kiln's policy, of first fit, and of no policy.

use std::collections::{BTreeMap, HashMap};

use super::{GRANULE, Model};
use crate::arena::Arena;
use crate::policy::Policy;

/// With the driver's alignment of GPU memory.
const POLICY: Policy = Policy { granule: 512, divisions: 128, split: 512 };
/// The value of the host pool.
const BLOCKS: usize = 8192;
/// Address space is added below this.
const TOP: usize = 1 << 46;
/// Address space is added in steps of this size, as in the host pool.
const STEP: usize = 64 << 20;

/// The policy of [`Arena`]. Physical memory is counted for touched addresses, in whole granules.
pub(super) struct Kiln {
    arena: Box<Arena<BLOCKS>>,
    lowest: usize,
    calls: u64,
    /// Requests beyond the size of the table.
    beyond: Plain,
}

impl Default for Kiln {
    fn default() -> Self {
        Self { arena: Box::new(Arena::new()), lowest: TOP, calls: 0, beyond: Plain::default() }
    }
}

impl Model for Kiln {
    fn allocate(&mut self, bytes: usize) -> usize {
        let before = self.arena.statistics().reserved;
        let got = self.arena.allocate(&POLICY, bytes).or_else(|| {
            let size = POLICY.class(bytes)?.max(STEP).next_multiple_of(GRANULE);
            let end = self.lowest;
            self.lowest = end.checked_sub(size)?;
            self.arena.add(self.lowest..end);
            self.arena.allocate(&POLICY, bytes)
        });
        self.calls += u64::from(self.arena.statistics().reserved > before);
        got.map_or_else(|| self.beyond.allocate(bytes), |got| got.addresses.start)
    }

    fn free(&mut self, address: usize) {
        if !self.arena.free(address) {
            self.beyond.free(address);
        }
    }

    fn reserved(&self) -> u64 {
        self.arena.statistics().reserved.next_multiple_of(GRANULE) as u64 + self.beyond.reserved()
    }

    fn driver_calls(&self) -> u64 {
        self.calls + self.beyond.driver_calls()
    }
}

/// First fit. Everything below the highest byte that was ever in use counts as reserved.
#[derive(Default)]
pub(super) struct FirstFit {
    /// Ranges in use: start to end.
    used: BTreeMap<usize, usize>,
    high: usize,
    calls: u64,
}

impl Model for FirstFit {
    fn allocate(&mut self, bytes: usize) -> usize {
        let size = bytes.max(1).next_multiple_of(512);
        let mut at = 0;
        for (&start, &end) in &self.used {
            if start - at >= size {
                break;
            }
            at = end;
        }
        self.used.insert(at, at + size);
        if at + size > self.high {
            self.high = (at + size).next_multiple_of(GRANULE);
            self.calls += 1;
        }
        at
    }

    fn free(&mut self, address: usize) {
        self.used.remove(&address);
    }

    fn reserved(&self) -> u64 {
        self.high as u64
    }

    fn driver_calls(&self) -> u64 {
        self.calls
    }
}

/// Nothing is kept. The driver's rounding is not counted.
#[derive(Default)]
pub(super) struct Plain {
    sizes: HashMap<usize, usize>,
    next: usize,
    used: u64,
    calls: u64,
}

impl Model for Plain {
    fn allocate(&mut self, bytes: usize) -> usize {
        self.next += 1;
        self.sizes.insert(self.next, bytes);
        self.used += bytes as u64;
        self.calls += 1;
        self.next
    }

    fn free(&mut self, address: usize) {
        if let Some(bytes) = self.sizes.remove(&address) {
            self.used -= bytes as u64;
            self.calls += 1;
        }
    }

    fn reserved(&self) -> u64 {
        self.used
    }

    fn driver_calls(&self) -> u64 {
        self.calls
    }
}
