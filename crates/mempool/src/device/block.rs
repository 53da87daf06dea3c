//! One block of a card's memory that serves the requests of a recorded run, and between its replays those of others.
//!
//! The addresses alone are dealt with here; nothing is allocated.

use std::collections::BTreeMap;

use crate::arena::Arena;
use crate::plan::{Lifetime, Plan};
use crate::policy::Policy;

/// What the driver aligns allocations to.
pub(super) const ALIGNMENT: usize = 512;
const POLICY: Policy = Policy { granule: ALIGNMENT, divisions: 64, split: ALIGNMENT };
/// Borrowers at a time: a decoder has some ten tensors.
const BORROWERS: usize = 512;

/// The requests of a run as they were made, by one thread.
#[derive(Debug, Default)]
pub struct Rehearsal {
    requests: Vec<Lifetime>,
    /// Those that live: address to index.
    live: BTreeMap<u64, usize>,
    now: usize,
}

/// Where each request of a run goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ScratchPlan {
    /// Size and offset, in the order of the requests.
    pub(super) places: Vec<(usize, usize)>,
    pub(super) bytes: usize,
}

impl ScratchPlan {
    /// The block's size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many requests the run makes.
    pub fn requests(&self) -> usize {
        self.places.len()
    }
}

impl Rehearsal {
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

    /// Lays the run's requests out. What outlives the run (what a library makes on its first use) is not asked for
    /// again, and has no place.
    pub fn plan(self) -> ScratchPlan {
        let requests: Vec<Lifetime> = self.requests.into_iter().filter(|request| request.end != usize::MAX).collect();
        let Plan { offsets, bytes, .. } = Plan::new(&requests, ALIGNMENT);
        ScratchPlan { places: requests.iter().map(|request| request.bytes).zip(offsets).collect(), bytes }
    }
}

/// Who has what of a block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) base: u64,
    pub(super) bytes: usize,
    /// What a recording run has at the moment: start to end.
    playing: BTreeMap<usize, usize>,
    /// What others have between the replays.
    lent: Box<Arena<BORROWERS>>,
}

impl Block {
    pub(super) fn new(base: u64, bytes: usize) -> Self {
        let mut lent = Box::new(Arena::new());
        lent.add(ALIGNMENT..ALIGNMENT + bytes);
        Self { base, bytes, playing: BTreeMap::new(), lent }
    }

    pub(super) fn contains(&self, address: u64) -> bool {
        (self.base..self.base + self.bytes as u64).contains(&address)
    }

    /// Whether nobody has anything of it.
    pub(super) fn is_idle(&self) -> bool {
        self.playing.is_empty() && self.lent.statistics().used == 0
    }

    /// The address of the recorded run's next request, which was planned; `None` where somebody still has that place.
    pub(super) fn play(&mut self, offset: usize, bytes: usize) -> Option<u64> {
        let end = offset + bytes.max(1);
        let taken = self.playing.range(..end).next_back().is_some_and(|(_, &other)| other > offset);
        if taken || end > self.bytes || self.lent.statistics().used > 0 {
            return None;
        }
        self.playing.insert(offset, end);
        Some(self.base + offset as u64)
    }

    /// The address of a borrower's request; `None` where it does not fit.
    pub(super) fn lend(&mut self, bytes: usize) -> Option<u64> {
        if !self.playing.is_empty() {
            return None;
        }
        // Offset 0 is no address for an arena's user: all are one alignment further up there.
        let start = self.lent.allocate(&POLICY, bytes)?.addresses.start;
        Some(self.base + (start - ALIGNMENT) as u64)
    }

    /// Takes back what begins at `address`; false where nothing does.
    pub(super) fn take_back(&mut self, address: u64) -> bool {
        let offset = (address - self.base) as usize;
        self.playing.remove(&offset).is_some() || self.lent.free(offset + ALIGNMENT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_run_gets_the_places_that_its_rehearsal_made() {
        let mut rehearsal = Rehearsal::default();
        rehearsal.allocated(1000, 700);
        rehearsal.allocated(2000, 64 << 10); // stays: a library's
        rehearsal.allocated(3000, 100);
        rehearsal.freed(1000);
        rehearsal.allocated(1000, 600); // the driver gives the same address again
        rehearsal.freed(77); // somebody else's
        rehearsal.freed(3000);
        rehearsal.freed(1000);
        let plan = rehearsal.plan();
        assert_eq!((plan.bytes(), plan.requests()), (1536, 3));

        let mut block = Block::new(1 << 30, plan.bytes());
        let address = |block: &mut Block, i: usize| {
            let (bytes, offset) = plan.places[i];
            block.play(offset, bytes)
        };
        let first = address(&mut block, 0).unwrap();
        assert!(block.contains(first) && !block.is_idle());
        let second = address(&mut block, 1).unwrap();
        assert!(second >= first + 700 || first >= second + 100);
        assert_eq!(address(&mut block, 2), None, "the first one still has that place");
        assert!(block.take_back(first) && !block.take_back(first));
        assert_eq!(address(&mut block, 2), Some(first));
        assert!(block.take_back(first) && block.take_back(second) && block.is_idle());
    }

    #[test]
    fn between_replays_others_have_what_fits() {
        let mut block = Block::new(4096, 10_240);
        let first = block.lend(5000).unwrap();
        assert_eq!(block.lend(8000), None);
        let second = block.lend(4000).unwrap();
        assert!(block.contains(first) && block.contains(second) && first.abs_diff(second) >= 4000);
        assert_eq!(block.play(0, 512), None, "what is lent is nobody else's");
        assert!(block.take_back(first) && block.take_back(second));
        assert!(block.is_idle() && block.lend(10_240) == Some(4096));
    }
}
