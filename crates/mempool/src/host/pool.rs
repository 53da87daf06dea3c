//! The allocator's calls: an arena behind a lock, and the system's allocator for all else.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{HostPool, LIMIT, map};
use crate::arena::{Allocation, Arena};
use crate::lock::Lock;
use crate::policy::Policy;
use crate::statistics::Statistics;
use crate::trace::{self, Pool};

/// Pages, with classes 0.8 % apart: a tensor's size is a small number times a power of two and so its own class, and of
/// a network's slabs, which have any size, not half a percent is lost. A rest that could serve no request stays with
/// its block.
pub(super) static POLICY: Policy = Policy { granule: map::PAGE, divisions: 128, split: LIMIT };
/// Large blocks at a time: networks have some hundred. Requests beyond are the system's.
const BLOCKS: usize = 8192;
/// Address space is asked for in multiples of this: a huge page.
const MAP_GRANULE: usize = 2 << 20;
/// The least address space that is asked for. It costs nothing before it is touched.
const MAP_LEAST: usize = 64 << 20;

static ARENA: Lock<Arena<BLOCKS>> = Lock::new(Arena::new());

/// Whether the pool serves requests of this layout.
fn is_pooled(layout: Layout) -> bool {
    layout.size() >= LIMIT && layout.align() <= map::PAGE
}

/// Serves a request, with more address space where it must; `None` where there is none, or the table is full.
fn obtain(bytes: usize) -> Option<Allocation> {
    static READY: AtomicBool = AtomicBool::new(false);
    if !READY.swap(true, Ordering::Relaxed) {
        map::keep_small_blocks();
        map::at_fork(before_fork, after_fork);
    }
    ARENA.with(|arena| {
        arena.allocate(&POLICY, bytes).or_else(|| {
            let size = POLICY.class(bytes)?.max(MAP_LEAST).checked_next_multiple_of(MAP_GRANULE)?;
            let addresses = map::map(size, arena.lowest())?;
            arena.count_system_calls(map::CALLS_TO_MAP);
            if !arena.add(addresses.clone()) {
                map::unmap(addresses);
                arena.count_system_calls(1);
                return None;
            }
            arena.allocate(&POLICY, bytes)
        })
    })
}

/// A fork copies the lock as it is, and of the threads only the one that forks: that one must hold it.
extern "C" fn before_fork() {
    trace::held(true);
    ARENA.acquire();
}

extern "C" fn after_fork() {
    ARENA.release();
    trace::held(false);
}

pub(super) fn reset_peaks() {
    ARENA.with(Arena::reset_peaks);
}

pub(super) fn block_size(bytes: usize) -> usize {
    if bytes < LIMIT { 0 } else { POLICY.class(bytes).unwrap_or(bytes) }
}

pub(super) fn statistics() -> Statistics {
    ARENA.with(|arena| arena.statistics())
}

pub(super) fn trim(threshold: f64) -> usize {
    let before = statistics();
    if !before.exceeds(threshold) {
        return 0;
    }
    // Without the lock: giving pages back takes the kernel some milliseconds a gigabyte.
    while let Some(addresses) = ARENA.with(Arena::take_waiting) {
        let start = addresses.start;
        let untouched = map::forget(addresses);
        ARENA.with(|arena| {
            arena.put_back(start, untouched);
            arena.count_system_calls(1);
        });
        if !untouched {
            break;
        }
    }
    before.reserved.saturating_sub(statistics().reserved)
}

// SAFETY: a pooled block is a run of mapped memory that the arena hands out to nobody else before it is freed (its
// tests), at least as large as its class and aligned to a page; all other blocks are the system allocator's. Which of
// both a block is, is known by its address and not by its layout, so every block goes back to where it came from. No
// call unwinds: nothing here indexes by what a caller says.
unsafe impl GlobalAlloc for HostPool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_pooled(layout).then(|| obtain(layout.size())).flatten() {
            Some(block) => {
                trace::allocated(Pool::Host, block.addresses.start as u64, layout.size());
                ptr::with_exposed_provenance_mut(block.addresses.start)
            }
            // SAFETY: the caller's contract is the system allocator's.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(block) = is_pooled(layout).then(|| obtain(layout.size())).flatten() else {
            // SAFETY: the caller's contract is the system allocator's.
            return unsafe { System.alloc_zeroed(layout) };
        };
        trace::allocated(Pool::Host, block.addresses.start as u64, layout.size());
        let start = ptr::with_exposed_provenance_mut::<u8>(block.addresses.start);
        let untouched = (block.untouched - block.addresses.start).min(layout.size());
        // Fresh pages are zeros already, and stay out of memory until somebody writes them.
        // SAFETY: the range lies in the block, which is this caller's alone.
        unsafe { start.add(untouched).write_bytes(0, layout.size() - untouched) };
        start
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_pooled(layout) {
            trace::freed(Pool::Host, block.addr() as u64); // unknown to the trace where it is the system's
        }
        if !(is_pooled(layout) && ARENA.with(|arena| arena.free(block.addr()))) {
            // SAFETY: the block is not the pool's, so it is the system allocator's, with this layout.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller holds that `new_size` is not 0 and does not overflow with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let owned = is_pooled(layout) && ARENA.with(|arena| arena.owns(block.addr()));
        if owned {
            // A block under the limit would be taken for the system's when it is freed.
            if is_pooled(new) && ARENA.with(|arena| arena.resize(&POLICY, block.addr(), new_size)) {
                trace::allocated(Pool::Host, block.addr() as u64, new_size); // in the place of what it was
                return block;
            }
        } else if !is_pooled(new) || is_pooled(layout) {
            // SAFETY: the block is the system allocator's and may stay there; the contract is the same.
            return unsafe { System.realloc(block, layout, new_size) };
        }
        // SAFETY: `new` is the layout of a request that is not empty.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both blocks have at least this many bytes and are not the same; the old one is the caller's to
            // free, with its layout.
            unsafe {
                ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}
