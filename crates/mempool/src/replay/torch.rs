//! A model of PyTorch's caching allocator.
//!
//! After the rules of `c10/cuda/CUDACachingAllocator.cpp` (PyTorch 2.11). Sizes are rounded up to 512 bytes, or to
//! divisions of a power of two. Requests of up to 1 MiB come from segments of 2 MiB, those below 10 MiB from segments
//! of 20 MiB, larger ones from segments of their own in multiples of 2 MiB. A request gets the smallest free block of
//! its kind that is large enough, and the rest becomes a block if it has at least 512 bytes, or for large ones more
//! than 1 MiB. Blocks are joined within their segment only. Segments are released only without memory, which does not
//! happen here.

use std::collections::{BTreeMap, BTreeSet};

use super::{GRANULE, Model};

const LEAST: usize = 512;
const SMALL: usize = 1 << 20;
const SMALL_SEGMENT: usize = 2 << 20;
const MEDIUM: usize = 10 << 20;
const MEDIUM_SEGMENT: usize = 20 << 20;

/// The options of `PYTORCH_CUDA_ALLOC_CONF`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TorchOptions {
    /// `max_split_size_mb`, in bytes: blocks of this size and more are not split.
    pub max_split: Option<usize>,
    /// `roundup_power2_divisions`, a power of two: requests are rounded up to one of this many sizes between two powers
    /// of two.
    pub roundup_power2_divisions: Option<usize>,
}

#[derive(Debug, Clone, Copy)]
struct Block {
    size: usize,
    /// The start of its segment.
    segment: usize,
    large: bool,
    free: bool,
}

pub(super) struct Torch {
    options: TorchOptions,
    /// All blocks by address.
    blocks: BTreeMap<usize, Block>,
    /// Free blocks of small and of large segments, by size and address.
    free: [BTreeSet<(usize, usize)>; 2],
    next: usize,
    reserved: u64,
    calls: u64,
}

impl Torch {
    pub(super) fn new(options: TorchOptions) -> Self {
        let (blocks, free) = (BTreeMap::new(), Default::default());
        Self { options, blocks, free, next: GRANULE, reserved: 0, calls: 0 }
    }

    fn round(&self, bytes: usize) -> usize {
        let whole = bytes.max(LEAST).next_multiple_of(LEAST);
        let Some(divisions) = self.options.roundup_power2_divisions.filter(|&divisions| divisions > 1) else {
            return whole;
        };
        if bytes <= LEAST * divisions || bytes.is_power_of_two() {
            return whole;
        }
        bytes.next_multiple_of((bytes.next_power_of_two() / 2 / divisions).max(1))
    }

    fn max_split(&self) -> usize {
        self.options.max_split.unwrap_or(usize::MAX)
    }

    /// The free block that serves a request of `size`, if there is one.
    fn find(&self, size: usize, large: bool) -> Option<(usize, usize)> {
        let &(found, address) = self.free[usize::from(large)].range((size, 0)..).next()?;
        let limit = self.max_split();
        let kept_for_larger = size < limit && found >= limit;
        let too_large = size >= limit && found >= size.saturating_add(MEDIUM_SEGMENT);
        (!kept_for_larger && !too_large).then_some((found, address))
    }

    fn add_segment(&mut self, size: usize, large: bool) -> (usize, usize) {
        let bytes = match size {
            _ if !large => SMALL_SEGMENT,
            ..MEDIUM => MEDIUM_SEGMENT,
            _ => size.next_multiple_of(GRANULE),
        };
        let start = self.next;
        self.next += bytes + GRANULE; // no two segments are adjacent
        self.blocks.insert(start, Block { size: bytes, segment: start, large, free: true });
        self.free[usize::from(large)].insert((bytes, start));
        self.reserved += bytes as u64;
        self.calls += 1;
        (bytes, start)
    }
}

impl Model for Torch {
    fn allocate(&mut self, bytes: usize) -> usize {
        let size = self.round(bytes);
        let large = size > SMALL;
        let (found, address) = self.find(size, large).unwrap_or_else(|| self.add_segment(size, large));
        self.free[usize::from(large)].remove(&(found, address));
        let rest = found - size;
        let split = if large { size < self.max_split() && rest > SMALL } else { rest >= LEAST };
        let Some(block) = self.blocks.get_mut(&address) else { return address };
        block.free = false;
        let rest_block = Block { size: rest, free: true, ..*block };
        if split {
            block.size = size;
            self.blocks.insert(address + size, rest_block);
            self.free[usize::from(large)].insert((rest, address + size));
        }
        address
    }

    fn free(&mut self, address: usize) {
        let Some(&Block { mut size, segment, large, .. }) = self.blocks.get(&address) else { return };
        let mut start = address;
        let free = &mut self.free[usize::from(large)];
        if let Some((&next, &Block { size: more, .. })) =
            self.blocks.range(address + size..).next().filter(|(_, block)| block.free && block.segment == segment)
        {
            free.remove(&(more, next));
            self.blocks.remove(&next);
            size += more;
        }
        if let Some((&before, &Block { size: more, .. })) =
            self.blocks.range(..address).next_back().filter(|(_, block)| block.free && block.segment == segment)
        {
            free.remove(&(more, before));
            self.blocks.remove(&address);
            (start, size) = (before, size + more);
        }
        self.blocks.insert(start, Block { size, segment, large, free: true });
        free.insert((size, start));
    }

    fn reserved(&self) -> u64 {
        self.reserved
    }

    fn driver_calls(&self) -> u64 {
        self.calls
    }
}
