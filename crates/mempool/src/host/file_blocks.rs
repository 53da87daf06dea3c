//! Blocks of the pool whose bytes are a file's: a vector that is read from a file without a copy.
//!
//! The block is allocated as any other, and then its pages are replaced by the file's. Pages that are only read stay those of
//! the page cache: they are shared with other processes, and the system can drop and read them again. When the block is
//! freed, it gets fresh memory.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc, dealloc};
use std::fs::File;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{HostPool, LIMIT, map, pool};
use crate::lock::Lock;

/// The blocks that are mapped to files.
pub(super) static BLOCKS: Lock<Table> = Lock::new(Table { starts: [0; MOST], ends: [0; MOST], count: 0 });
/// The number of blocks in [`BLOCKS`], so that a program without any takes no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// The most blocks: a network has a hundred slabs at most. Further ones are refused.
const MOST: usize = 1024;

/// The addresses of the blocks, in no order. It allocates nothing, since the allocator uses it.
pub(super) struct Table {
    starts: [usize; MOST],
    ends: [usize; MOST],
    count: usize,
}

impl Table {
    fn add(&mut self, addresses: &Range<usize>) -> bool {
        if self.count == MOST {
            return false;
        }
        (self.starts[self.count], self.ends[self.count]) = (addresses.start, addresses.end);
        self.count += 1;
        COUNT.store(self.count, Ordering::Release);
        true
    }

    fn find(&self, start: usize) -> Option<usize> {
        self.starts[..self.count].iter().position(|&known| known == start)
    }

    fn take(&mut self, start: usize) -> Option<Range<usize>> {
        let i = self.find(start)?;
        let found = self.starts[i]..self.ends[i];
        self.count -= 1;
        (self.starts[i], self.ends[i]) = (self.starts[self.count], self.ends[self.count]);
        COUNT.store(self.count, Ordering::Release);
        Some(found)
    }
}

/// Whether the block at `start` is mapped to a file.
pub(super) fn is_one(start: usize) -> bool {
    COUNT.load(Ordering::Acquire) > 0 && BLOCKS.with(|blocks| blocks.find(start).is_some())
}

/// Gives the block at `start` fresh memory, if it is mapped to a file. False where the system refuses that.
pub(super) fn forget(start: usize) -> bool {
    if COUNT.load(Ordering::Acquire) == 0 {
        return true;
    }
    BLOCKS.with(|blocks| blocks.take(start)).is_none_or(map::map_anew)
}

/// A number of which every bit pattern is a value, so that the bytes of any file are numbers.
pub trait Number: Copy + sealed::Sealed {}

mod sealed {
    pub trait Sealed {}
}

macro_rules! numbers {
    ($($number:ty),*) => { $(impl sealed::Sealed for $number {} impl Number for $number {})* };
}

numbers!(u8, u16, u32, f32);

impl HostPool {
    /// `len` numbers of `file` from byte `offset` on, a multiple of 4096, in the machine's order of bytes, without a copy. The
    /// vector's memory is mapped to the file: it costs no memory besides the page cache until it is written to, and writing
    /// does not change the file. `check` gets its bytes first and may refuse them.
    ///
    /// `None` if that is not possible, and the caller has to read the file: the program has another allocator, the
    /// numbers are fewer than the pool serves, the file is too short, the system refuses to map it, or `check` refuses.
    ///
    /// The file must not become shorter while the vector lives: the system ends a process that reads a page past the end.
    /// Replace it by renaming another one to its name.
    pub fn map_file<T: Number>(
        file: &File,
        offset: u64,
        len: usize,
        check: impl FnOnce(&[u8]) -> bool,
    ) -> Option<Vec<T>> {
        let layout = Layout::array::<T>(len).ok()?;
        let enough = file.metadata().ok()?.len() >= offset.checked_add(layout.size() as u64)?;
        if layout.size() < LIMIT || !offset.is_multiple_of(map::PAGE as u64) || !enough {
            return None;
        }
        // SAFETY: the layout is not empty.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return None;
        }
        let addresses = start.expose_provenance()..start.addr() + layout.size().next_multiple_of(map::PAGE);
        // The sizes of the pool's blocks are whole pages.
        let is_ours = pool::owns(addresses.start);
        let listed = is_ours && BLOCKS.with(|blocks| blocks.add(&addresses));
        let mapped = listed && map::map_file(addresses, file, offset);
        // SAFETY: the block has this many bytes, which are the file's, and there is no other reference to it.
        if mapped && check(unsafe { std::slice::from_raw_parts(start, layout.size()) }) {
            // SAFETY: the block is from the global allocator with the layout of `len` numbers, and any bytes are numbers.
            return Some(unsafe { Vec::from_raw_parts(start.cast(), len, len) });
        }
        // SAFETY: the block is from the global allocator with this layout. If it is listed, it gets fresh memory now.
        unsafe { dealloc(start, layout) };
        None
    }
}
