//! The allocator's functions: an arena behind a lock, and the system's allocator for the rest.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{HostPool, LIMIT, file_blocks, map};
use crate::arena::{Allocation, Arena};
use crate::lock::Lock;
use crate::policy::Policy;
use crate::statistics::Statistics;
use crate::trace::{self, Pool};

/// Pages, with size classes 0.8 % apart. The size of a tensor is a small number times a power of two and so a class
/// itself, and of a network's slabs, which have any size, less than half a percent is wasted. A rest that is too small
/// for any request stays with its block.
pub(super) static POLICY: Policy = Policy { granule: map::PAGE, divisions: 128, split: LIMIT };
/// The maximum of blocks. Networks have about a hundred; the system serves requests beyond it.
const BLOCKS: usize = 8192;
/// Address space is mapped in multiples of this size, a huge page.
const MAP_GRANULE: usize = 2 << 20;
/// The least address space to map. It takes no physical memory before it is touched.
const MAP_LEAST: usize = 64 << 20;

static ARENA: Lock<Arena<BLOCKS>> = Lock::new(Arena::new());

/// Whether the system's allocator keeps its settings ([`HostPool::leave_system_allocator`]).
static LEAVES_SYSTEM: AtomicBool = AtomicBool::new(false);

/// Whether a block in use begins at `start`.
pub(super) fn owns(start: usize) -> bool {
    ARENA.with(|arena| arena.owns(start))
}

/// Whether the pool serves requests of this layout.
fn is_pooled(layout: Layout) -> bool {
    layout.size() >= LIMIT && layout.align() <= map::PAGE
}

/// Serves a request and maps more address space where necessary. `None` without address space, or with a full table.
fn obtain(bytes: usize) -> Option<Allocation> {
    static READY: AtomicBool = AtomicBool::new(false);
    if !READY.swap(true, Ordering::Relaxed) {
        if !LEAVES_SYSTEM.load(Ordering::Relaxed) {
            map::keep_small_blocks();
        }
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

/// A fork copies the lock's state, but only the forking thread. So that thread must hold the lock.
extern "C" fn before_fork() {
    trace::lock_for_fork();
    file_blocks::BLOCKS.acquire();
    ARENA.acquire();
}

extern "C" fn after_fork() {
    ARENA.release();
    file_blocks::BLOCKS.release();
    trace::unlock_after_fork();
}

pub(super) fn leave_system_allocator() {
    LEAVES_SYSTEM.store(true, Ordering::Relaxed);
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
    // Without the lock: releasing pages takes the kernel some milliseconds for each gigabyte.
    while let Some(addresses) = ARENA.with(Arena::take_unused) {
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

// SAFETY: a pooled block is a range of mapped memory that the arena hands out to no other request before it is freed
// (see its tests), is at least as large as its size class and aligned to a page. All other blocks are from the system's
// allocator. Whether a block is pooled is determined by its address and not by its layout, so every block is freed
// where it was allocated. No call unwinds: nothing here indexes by values of the caller.
unsafe impl GlobalAlloc for HostPool {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match is_pooled(layout).then(|| obtain(layout.size())).flatten() {
            Some(block) => {
                trace::allocated(Pool::Host, block.addresses.start as u64, layout.size());
                ptr::with_exposed_provenance_mut(block.addresses.start)
            }
            // SAFETY: the caller keeps the contract of `alloc`, which is the system allocator's too.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let Some(block) = is_pooled(layout).then(|| obtain(layout.size())).flatten() else {
            // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the system allocator's too.
            return unsafe { System.alloc_zeroed(layout) };
        };
        trace::allocated(Pool::Host, block.addresses.start as u64, layout.size());
        let start = ptr::with_exposed_provenance_mut::<u8>(block.addresses.start);
        let untouched = (block.untouched - block.addresses.start).min(layout.size());
        // Fresh pages are zeroed already, and take no physical memory before they are written.
        // SAFETY: the range is inside of the block, which only this caller has.
        unsafe { start.add(untouched).write_bytes(0, layout.size() - untouched) };
        start
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if is_pooled(layout) {
            trace::freed(Pool::Host, block.addr() as u64); // not in the trace if it is a block of the system
            if !file_blocks::forget(block.addr()) {
                return; // the block stays the file's, and is lost to the pool
            }
        }
        if !(is_pooled(layout) && ARENA.with(|arena| arena.free(block.addr()))) {
            // SAFETY: the block is not the pool's, so it is the system allocator's, with this layout.
            unsafe { System.dealloc(block, layout) }
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: by the contract `new_size` is not 0 and does not overflow with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        let owned = is_pooled(layout) && owns(block.addr());
        if owned && !file_blocks::is_one(block.addr()) {
            // A block below the limit would be freed as a block of the system.
            if is_pooled(new) && ARENA.with(|arena| arena.resize(&POLICY, block.addr(), new_size)) {
                trace::allocated(Pool::Host, block.addr() as u64, new_size); // replaces the earlier allocation
                return block;
            }
        } else if !owned && (!is_pooled(new) || is_pooled(layout)) {
            // SAFETY: the block is the system allocator's and may stay there; the contract is the same.
            return unsafe { System.realloc(block, layout, new_size) };
        }
        // SAFETY: `new` is the layout of a request that is not empty.
        let moved = unsafe { self.alloc(new) };
        if !moved.is_null() {
            // SAFETY: both blocks have at least this many bytes and are different; the caller passes the old one to be
            // freed, with its layout.
            unsafe {
                ptr::copy_nonoverlapping(block, moved, layout.size().min(new_size));
                self.dealloc(block, layout);
            }
        }
        moved
    }
}
