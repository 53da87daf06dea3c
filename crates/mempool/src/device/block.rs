//! One block of GPU memory that serves the allocations of a recorded step, and those of other stages between replays.
//!
//! This module computes addresses only. It allocates nothing.

use std::collections::BTreeMap;

use crate::arena::Arena;
use crate::plan::{Lifetime, Plan};
use crate::policy::Policy;

/// The driver's alignment of allocations, in bytes.
pub(super) const ALIGNMENT: usize = 512;
const POLICY: Policy = Policy { granule: ALIGNMENT, divisions: 64, split: ALIGNMENT };
/// Unplanned allocations at a time. A decoder has about ten tensors.
const UNPLANNED: usize = 512;

/// The allocations of a run in their order, on one thread.
#[derive(Debug, Default)]
pub struct AllocationTrace {
    requests: Vec<Lifetime>,
    /// Live allocations: address to index.
    live: BTreeMap<u64, usize>,
    now: usize,
}

/// The offset of each allocation of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScratchPlan {
    /// Size and offset, in the order of the allocations.
    pub(super) places: Vec<(usize, usize)>,
    pub(super) bytes: usize,
}

impl ScratchPlan {
    /// The size of the block in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The number of allocations of the run.
    pub fn requests(&self) -> usize {
        self.places.len()
    }
}

impl AllocationTrace {
    pub(super) fn allocated(&mut self, address: u64, bytes: usize) {
        self.live.insert(address, self.requests.len());
        self.requests.push(Lifetime { bytes, start: self.now, end: usize::MAX });
        self.now += 1;
    }

    pub(super) fn freed(&mut self, address: u64) {
        if let Some(index) = self.live.remove(&address) {
            self.requests[index].end = self.now;
            self.now += 1;
        }
    }

    /// Plans the offsets. Memory that outlives the run, as a library allocates on its first use, is not allocated again
    /// and gets no offset.
    pub fn plan(self) -> ScratchPlan {
        let requests: Vec<Lifetime> = self.requests.into_iter().filter(|request| request.end != usize::MAX).collect();
        let Plan { offsets, bytes, .. } = Plan::new(&requests, ALIGNMENT);
        ScratchPlan { places: requests.iter().map(|request| request.bytes).zip(offsets).collect(), bytes }
    }
}

/// The state of a block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) base: u64,
    pub(super) bytes: usize,
    /// Planned allocations that are in use: start to end.
    planned: BTreeMap<usize, usize>,
    /// Allocations of other stages between replays.
    unplanned: Box<Arena<UNPLANNED>>,
}

impl Block {
    pub(super) fn new(base: u64, bytes: usize) -> Self {
        let mut unplanned = Box::new(Arena::new());
        unplanned.add(ALIGNMENT..ALIGNMENT + bytes);
        Self { base, bytes, planned: BTreeMap::new(), unplanned }
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        (self.base..self.base + self.bytes as u64).contains(&address)
    }

    /// Whether nothing of it is in use.
    pub(super) fn is_idle(&self) -> bool {
        self.planned.is_empty() && self.unplanned.statistics().used == 0
    }

    /// The address of a planned allocation. `None` if that range is still in use.
    pub(super) fn allocate_planned(&mut self, offset: usize, bytes: usize) -> Option<u64> {
        let end = offset + bytes.max(1);
        let taken = self.planned.range(..end).next_back().is_some_and(|(_, &other)| other > offset);
        if taken || end > self.bytes || self.unplanned.statistics().used > 0 {
            return None;
        }
        self.planned.insert(offset, end);
        Some(self.base + offset as u64)
    }

    /// The address of an allocation of another stage. `None` if it does not fit, or during a capture.
    pub(super) fn allocate_unplanned(&mut self, bytes: usize) -> Option<u64> {
        if !self.planned.is_empty() {
            return None;
        }
        // An arena cannot hand out address 0, so its addresses are larger by one alignment.
        let start = self.unplanned.allocate(&POLICY, bytes)?.addresses.start;
        Some(self.base + (start - ALIGNMENT) as u64)
    }

    /// Frees the allocation at `address`. False if there is none.
    pub(super) fn free(&mut self, address: u64) -> bool {
        let offset = (address - self.base) as usize;
        self.planned.remove(&offset).is_some() || self.unplanned.free(offset + ALIGNMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_gets_the_addresses_of_the_plan() {
        let mut recorded = AllocationTrace::default();
        recorded.allocated(1000, 700);
        recorded.allocated(2000, 64 << 10); // not freed: a library's
        recorded.allocated(3000, 100);
        recorded.freed(1000);
        recorded.allocated(1000, 600); // the driver returns the same address again
        recorded.freed(77); // not recorded
        recorded.freed(3000);
        recorded.freed(1000);
        let plan = recorded.plan();
        assert_eq!((plan.bytes(), plan.requests()), (1536, 3));

        let mut block = Block::new(1 << 30, plan.bytes());
        let address = |block: &mut Block, i: usize| {
            let (bytes, offset) = plan.places[i];
            block.allocate_planned(offset, bytes)
        };
        let first = address(&mut block, 0).unwrap();
        assert!(block.contains(first) && !block.is_idle());
        let second = address(&mut block, 1).unwrap();
        assert!(second >= first + 700 || first >= second + 100);
        assert_eq!(address(&mut block, 2), None, "the first allocation still uses that range");
        assert!(block.free(first) && !block.free(first));
        assert_eq!(address(&mut block, 2), Some(first));
        assert!(block.free(first) && block.free(second) && block.is_idle());
    }

    #[test]
    fn other_stages_allocate_between_replays() {
        let mut block = Block::new(4096, 10_240);
        let first = block.allocate_unplanned(5000).unwrap();
        assert_eq!(block.allocate_unplanned(8000), None);
        let second = block.allocate_unplanned(4000).unwrap();
        assert!(block.contains(first) && block.contains(second) && first.abs_diff(second) >= 4000);
        assert_eq!(block.allocate_planned(0, 512), None, "a planned allocation does not overlap an unplanned one");
        assert!(block.free(first) && block.free(second));
        assert!(block.is_idle() && block.allocate_unplanned(10_240) == Some(4096));
    }
}
