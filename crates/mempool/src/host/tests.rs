#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::slice;

use super::*;

fn layout(size: usize, align: usize) -> Layout {
    Layout::from_size_align(size, align).unwrap()
}

/// A block of the pool, filled with its own value, which is checked when it is freed.
struct Owned {
    start: *mut u8,
    layout: Layout,
    value: u8,
}

// SAFETY: only this value has the block.
unsafe impl Send for Owned {}

impl Owned {
    fn new(size: usize, align: usize, value: u8) -> Self {
        let layout = layout(size, align);
        // SAFETY: the layout is not empty.
        let start = unsafe { HostPool.alloc(layout) };
        assert!(!start.is_null() && start.addr().is_multiple_of(align));
        let mut block = Self { start, layout, value };
        block.bytes().fill(value);
        block
    }

    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the block has this many bytes, all of them written.
        unsafe { slice::from_raw_parts_mut(self.start, self.layout.size()) }
    }

    fn resize(&mut self, size: usize) {
        let kept = size.min(self.layout.size());
        // SAFETY: the block is the pool's, with this layout.
        self.start = unsafe { HostPool.realloc(self.start, self.layout, size) };
        assert!(!self.start.is_null() && self.start.addr().is_multiple_of(self.layout.align()));
        self.layout = layout(size, self.layout.align());
        // SAFETY: the block has this many bytes; those that were kept are written.
        let kept = unsafe { slice::from_raw_parts(self.start, kept) };
        assert!(kept.iter().all(|byte| *byte == self.value), "bytes changed while they moved");
        let value = self.value;
        // SAFETY: as above; this writes them all.
        unsafe { self.start.write_bytes(value, size) };
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let value = self.value;
        assert!(self.bytes().iter().all(|byte| *byte == value), "the block was overwritten");
        // SAFETY: the block is the pool's, with this layout, and is not used any more.
        unsafe { HostPool.dealloc(self.start, self.layout) }
    }
}

#[test]
fn blocks_keep_their_bytes_on_all_threads() {
    std::thread::scope(|scope| {
        for thread in 0..4u8 {
            scope.spawn(move || {
                let mut live = Vec::new();
                let mut number = u64::from(thread) + 1;
                for i in 0..400 {
                    number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let random = (number >> 33) as usize;
                    let size = 1 + random % (4 * LIMIT);
                    match random % 3 {
                        0 if live.len() > 4 => drop(live.swap_remove(random % live.len())),
                        1 if !live.is_empty() => {
                            let at = random % live.len();
                            let block: &mut Owned = &mut live[at];
                            block.resize(size);
                        }
                        _ => live.push(Owned::new(size, 1 << (random % 14), thread * 50 + i as u8 % 50)),
                    }
                    if i % 100 == 99 {
                        HostPool::trim(0.0);
                    }
                }
            });
        }
    });
}

#[test]
fn zeroed_blocks_are_zero_in_reused_memory_too() {
    for size in [LIMIT, LIMIT + 1, 3 << 20, 100 << 20] {
        drop(Owned::new(size, 64, 0xa5));
        let layout = layout(size + 5000, 64);
        // SAFETY: the layout is not empty; the block is written by the pool and freed with its layout.
        unsafe {
            let start = HostPool.alloc_zeroed(layout);
            assert!(slice::from_raw_parts(start, layout.size()).iter().all(|byte| *byte == 0));
            HostPool.dealloc(start, layout);
        }
    }
}

#[test]
fn a_request_beyond_the_address_space_returns_null() {
    for size in [isize::MAX as usize - (2 << 20), 1 << 60] {
        // SAFETY: the layout is not empty.
        assert!(unsafe { HostPool.alloc(layout(size, 64)) }.is_null());
        // SAFETY: the layout is not empty.
        assert!(unsafe { HostPool.alloc_zeroed(layout(size, 64)) }.is_null());
    }
    let mut block = Owned::new(LIMIT, 64, 7);
    // SAFETY: the block is the pool's, with this layout.
    assert!(unsafe { HostPool.realloc(block.start, block.layout, 1 << 60) }.is_null());
    assert!(block.bytes().iter().all(|byte| *byte == 7), "a failed request leaves the block unchanged");
}
