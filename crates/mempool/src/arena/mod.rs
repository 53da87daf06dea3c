//! The allocation policy: which block of a pool's address space serves which request.
//!
//! An arena is a table of blocks, sorted by address. It accesses no memory, so the same policy serves host memory,
//! pinned memory, GPU memory, and traces of any of them. A request gets the free block that needs the least new memory,
//! among those the smallest, and among those the lowest. The rest of the block is split off ([`Policy::split`]), and
//! freed neighbors are joined at once, so that no two free blocks are adjacent.
//!
//! A block serves a request from its end, and address space grows downwards, so the part of a free block that has been
//! used before is always its upper part. The length of that part, `dirty`, is the physical memory of the block, and
//! what must be cleared for a request of zeros. The part below has not been touched since the system mapped it.
//!
//! The table has a fixed size and is searched linearly: a network has about a hundred large blocks, and a search of
//! them costs less than one page fault. It needs no memory of its own, which lets a global allocator use it.

#[cfg(test)]
mod tests;

use std::ops::Range;

use crate::policy::Policy;
use crate::statistics::Statistics;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Used,
    /// The upper `dirty` bytes have been used before.
    Free {
        dirty: usize,
    },
}

/// A range of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    start: usize,
    size: usize,
    state: State,
}

impl Block {
    const fn end(&self) -> usize {
        self.start + self.size
    }

    /// The length of the part that has been used before, if the block is free.
    const fn dirty(&self) -> Option<usize> {
        match self.state {
            State::Used => None,
            State::Free { dirty } => Some(dirty),
        }
    }
}

/// The block of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Its addresses, at least as many as requested.
    pub addresses: Range<usize>,
    /// The end of its untouched part. Memory below it reads as zeros, if fresh memory of the system does.
    pub untouched: usize,
}

/// A table of at most `N` blocks. See the documentation of the module.
///
/// Every call takes the policy, which must always be the same. An arena without blocks is all zeros, so a static one
/// takes no space in the file of a program.
#[derive(Debug)]
pub struct Arena<const N: usize> {
    blocks: [Block; N],
    len: usize,
    statistics: Statistics,
}

impl<const N: usize> Default for Arena<N> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const N: usize> Arena<N> {
    /// An arena without address space.
    pub const fn new() -> Self {
        let nothing = Block { start: 0, size: 0, state: State::Used };
        let statistics = Statistics {
            allocations: 0,
            reused: 0,
            system_calls: 0,
            used: 0,
            peak_used: 0,
            reserved: 0,
            peak_reserved: 0,
            largest_unused: 0,
        };
        Self { blocks: [nothing; N], len: 0, statistics }
    }

    /// Adds untouched address space. False, without an effect, where the table is full or the space overlaps another
    /// one.
    pub fn add(&mut self, addresses: Range<usize>) -> bool {
        let at = self.table().partition_point(|block| block.start < addresses.start);
        let overlaps = |block: Option<&Block>| {
            block.is_some_and(|block| block.start < addresses.end && addresses.start < block.end())
        };
        let before = at.checked_sub(1).and_then(|i| self.table().get(i));
        if addresses.is_empty() || self.is_full() || overlaps(before) || overlaps(self.table().get(at)) {
            return false;
        }
        let (start, size) = (addresses.start, addresses.len());
        self.insert(at, Block { start, size, state: State::Free { dirty: 0 } });
        self.coalesce(at);
        true
    }

    /// Serves a request of `bytes`. `None` where no free block is large enough or the table is full.
    pub fn allocate(&mut self, policy: &Policy, bytes: usize) -> Option<Allocation> {
        let size = policy.class(bytes)?;
        let cost = |(_, block): &(usize, &Block)| {
            let dirty = block.dirty().filter(|_| block.size >= size)?;
            Some((size.saturating_sub(dirty), block.size))
        };
        let found = self.table().iter().enumerate().filter_map(|found| Some((cost(&found)?, found.0))).min();
        let (_, i) = found?;
        let block = self.blocks[i];
        let dirty = block.dirty()?;
        let rest = block.size - size;
        let mut given = Block { state: State::Used, ..block };
        if rest >= policy.split.max(1) {
            if self.is_full() {
                return None;
            }
            given = Block { start: block.start + rest, size, ..given };
            let state = State::Free { dirty: dirty.saturating_sub(size) };
            self.blocks[i] = Block { size: rest, state, ..block };
            self.insert(i + 1, given);
        } else {
            self.blocks[i] = given;
        }
        let untouched = given.size - dirty.min(given.size);
        self.count_use(given.size, untouched);
        Some(Allocation { addresses: given.start..given.end(), untouched: given.start + untouched })
    }

    /// Whether a block in use begins at `start`.
    pub fn owns(&self, start: usize) -> bool {
        self.find(start).is_some()
    }

    /// Grows or shrinks the block in use at `start` to `bytes` in place. False if it cannot grow, or if there is no
    /// such block.
    pub fn resize(&mut self, policy: &Policy, start: usize, bytes: usize) -> bool {
        let (Some(i), Some(size)) = (self.find(start), policy.class(bytes)) else { return false };
        let block = self.blocks[i];
        if size <= block.size {
            let rest = block.size - size;
            if rest >= policy.split.max(1) && !self.is_full() {
                self.blocks[i].size = size;
                self.insert(i + 1, Block { start: start + size, size: rest, state: State::Free { dirty: rest } });
                self.statistics.used -= rest;
                self.coalesce(i + 1);
            }
            return true;
        }
        let missing = size - block.size;
        let above =
            self.table().get(i + 1).copied().filter(|above| above.start == block.end() && above.size >= missing);
        let (Some(above), Some(dirty)) = (above, above.and_then(|above| above.dirty())) else { return false };
        let taken = if above.size - missing >= policy.split.max(1) { missing } else { above.size };
        let (rest, untouched) = (above.size - taken, above.size - dirty);
        self.blocks[i].size += taken;
        if rest == 0 {
            self.take_out(i + 1);
        } else {
            let state = State::Free { dirty: dirty.min(rest) };
            self.blocks[i + 1] = Block { start: above.start + taken, size: rest, state };
        }
        self.count_use(taken, taken.min(untouched));
        true
    }

    /// Frees the block in use at `start`. False if there is none.
    pub fn free(&mut self, start: usize) -> bool {
        let Some(i) = self.find(start) else { return false };
        let size = self.blocks[i].size;
        self.blocks[i].state = State::Free { dirty: size };
        self.statistics.used -= size;
        self.coalesce(i);
        true
    }

    /// Takes out a block with unused memory, so that the caller can release it to the system without a lock: the block
    /// is not used before [`Arena::put_back`]. `None` without unused memory.
    pub fn take_unused(&mut self) -> Option<Range<usize>> {
        let i = self.table().iter().position(|block| block.dirty().is_some_and(|dirty| dirty > 0))?;
        let block = self.blocks[i];
        self.statistics.reserved -= block.dirty()?;
        self.blocks[i].state = State::Used;
        Some(block.start..block.end())
    }

    /// Frees the block that was taken out at `start`. `untouched` is whether the system has released its memory. False
    /// if there is no such block.
    pub fn put_back(&mut self, start: usize, untouched: bool) -> bool {
        let Some(i) = self.find(start) else { return false };
        let dirty = if untouched { 0 } else { self.blocks[i].size };
        self.blocks[i].state = State::Free { dirty };
        self.reserve(dirty);
        self.coalesce(i);
        true
    }

    /// Removes address space that was added at once, is not adjacent to other space, and is unused. False, without an
    /// effect, for any other range.
    pub fn remove(&mut self, addresses: Range<usize>) -> bool {
        let Ok(i) = self.table().binary_search_by_key(&addresses.start, |block| block.start) else { return false };
        let block = self.blocks[i];
        let Some(dirty) = block.dirty().filter(|_| block.end() == addresses.end) else { return false };
        self.statistics.reserved -= dirty;
        self.take_out(i);
        true
    }

    /// The size of the largest free block, touched or not.
    pub fn largest_free(&self) -> usize {
        self.table().iter().filter(|block| block.dirty().is_some()).map(|block| block.size).max().unwrap_or(0)
    }

    /// Counts system calls that were made for this arena.
    pub fn count_system_calls(&mut self, calls: u64) {
        self.statistics.system_calls += calls;
    }

    /// The lowest address of the arena so far.
    pub fn lowest(&self) -> Option<usize> {
        self.table().first().map(|block| block.start)
    }

    /// Resets the peaks to the current values.
    pub fn reset_peaks(&mut self) {
        let statistics = &mut self.statistics;
        (statistics.peak_used, statistics.peak_reserved) = (statistics.used, statistics.reserved);
    }

    /// The current statistics.
    pub fn statistics(&self) -> Statistics {
        let largest_unused = self.table().iter().filter_map(Block::dirty).max().unwrap_or(0);
        Statistics { largest_unused, ..self.statistics }
    }

    fn table(&self) -> &[Block] {
        &self.blocks[..self.len]
    }

    const fn is_full(&self) -> bool {
        self.len == N
    }

    /// The index of the block in use at `start`.
    fn find(&self, start: usize) -> Option<usize> {
        let i = self.table().binary_search_by_key(&start, |block| block.start).ok()?;
        (self.blocks[i].state == State::Used).then_some(i)
    }

    /// Inserts a block at an index. The table has room.
    fn insert(&mut self, at: usize, block: Block) {
        self.blocks.copy_within(at..self.len, at + 1);
        self.blocks[at] = block;
        self.len += 1;
    }

    fn take_out(&mut self, at: usize) {
        self.blocks.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }

    /// Joins the free block `i` with the adjacent free blocks.
    fn coalesce(&mut self, i: usize) {
        if i + 1 < self.len {
            self.join(i);
        }
        if i > 0 {
            self.join(i - 1);
        }
    }

    /// Joins the blocks `i` and `i + 1` if both are free and adjacent. Untouched memory between two touched parts
    /// counts as touched.
    fn join(&mut self, i: usize) {
        let (below, above) = (self.blocks[i], self.blocks[i + 1]);
        let (Some(lower), Some(upper)) = (below.dirty(), above.dirty()) else { return };
        if below.end() != above.start {
            return;
        }
        let dirty = if lower == 0 { upper } else { lower + above.size };
        self.blocks[i] = Block { size: below.size + above.size, state: State::Free { dirty }, ..below };
        self.take_out(i + 1);
        self.reserve(dirty - lower - upper);
    }

    /// Counts a request of `size` bytes, of which `new` were untouched.
    fn count_use(&mut self, size: usize, new: usize) {
        let statistics = &mut self.statistics;
        statistics.allocations += 1;
        statistics.reused += u64::from(new == 0);
        statistics.used += size;
        statistics.peak_used = statistics.peak_used.max(statistics.used);
        self.reserve(new);
    }

    fn reserve(&mut self, bytes: usize) {
        let statistics = &mut self.statistics;
        statistics.reserved += bytes;
        statistics.peak_reserved = statistics.peak_reserved.max(statistics.reserved);
    }
}
