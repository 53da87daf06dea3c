//! The recorder of events. Allocators call it, so it writes into memory that was allocated before, under a lock that
//! does not allocate.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::{Category, EventKind, MemoryEvent, MemoryTrace, Pool};
use crate::error::{Error, Result};
use crate::lock::Lock;

/// The maximum of stages of a recording.
const STAGES: usize = 1024;

#[derive(Debug, Clone, Copy)]
enum Kind {
    Allocated(Pool, Category),
    Freed(Pool),
    /// `address` is the index of the stage.
    Stage,
}

#[derive(Debug, Clone, Copy)]
struct Raw {
    nanos: u64,
    address: u64,
    bytes: u64,
    kind: Kind,
}

/// A fixed number of events in memory of the system's allocator, which is not recorded.
struct Buffer {
    start: *mut Raw,
    capacity: usize,
    len: usize,
    lost: u64,
    began: Option<Instant>,
    stages: [&'static str; STAGES],
    stage_count: usize,
}

// SAFETY: the buffer owns its memory.
unsafe impl Send for Buffer {}

static ACTIVE: AtomicBool = AtomicBool::new(false);
static BUFFER: Lock<Buffer> = Lock::new(Buffer {
    start: std::ptr::null_mut(),
    capacity: 0,
    len: 0,
    lost: 0,
    began: None,
    stages: [""; STAGES],
    stage_count: 0,
});

impl Buffer {
    fn push(&mut self, kind: Kind, address: u64, bytes: u64) {
        if self.len == self.capacity {
            self.lost += 1;
            return;
        }
        let nanos = self.began.map_or(0, |began| began.elapsed().as_nanos() as u64);
        // SAFETY: `len` is less than the capacity, for which there is memory.
        unsafe { self.start.add(self.len).write(Raw { nanos, address, bytes, kind }) };
        self.len += 1;
    }

    fn layout(&self) -> Option<Layout> {
        Layout::array::<Raw>(self.capacity).ok().filter(|layout| layout.size() > 0)
    }
}

/// Records while it lives. A process has one at a time.
#[derive(Debug)]
pub struct MemoryRecorder(());

impl MemoryRecorder {
    /// Starts a recording of at most `events` events, each of which takes 32 bytes once it is recorded.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] without memory for the events, [`Error::Recording`] during another recording.
    pub fn start(events: usize) -> Result<Self> {
        let refused = || Error::OutOfMemory {
            pool: "host",
            requested: (events as u64).saturating_mul(size_of::<Raw>() as u64),
            used: 0,
            ceiling: None,
        };
        let layout = Layout::array::<Raw>(events.max(1)).map_err(|_| refused())?;
        // SAFETY: the layout is not empty.
        let start = unsafe { System.alloc(layout) }.cast::<Raw>();
        if start.is_null() {
            return Err(refused());
        }
        let taken = BUFFER.with(|buffer| {
            if buffer.capacity > 0 {
                return false;
            }
            (buffer.start, buffer.capacity) = (start, events.max(1));
            (buffer.len, buffer.lost, buffer.stage_count) = (0, 0, 0);
            buffer.began = Some(Instant::now());
            true
        });
        if !taken {
            // SAFETY: the memory is from above, and its address was not passed on.
            unsafe { System.dealloc(start.cast(), layout) };
            return Err(Error::Recording);
        }
        ACTIVE.store(true, Ordering::SeqCst);
        Ok(Self(()))
    }

    /// Ends the recording. Frees of memory from before the recording are left out.
    pub fn finish(self) -> MemoryTrace {
        ACTIVE.store(false, Ordering::SeqCst);
        // Under the lock no recorded allocation may happen: the recording has ended, so none is recorded.
        let mut trace = MemoryTrace::default();
        let mut live: HashMap<(Pool, u64), u64> = HashMap::new();
        BUFFER.with(|buffer| {
            trace.lost = buffer.lost;
            // SAFETY: this many events are written.
            let events = unsafe { std::slice::from_raw_parts(buffer.start, buffer.len) };
            for (i, event) in events.iter().enumerate() {
                let id = i as u64;
                let what = match event.kind {
                    Kind::Allocated(pool, category) => {
                        if let Some(id) = live.insert((pool, event.address), id) {
                            trace.events.push(MemoryEvent { nanos: event.nanos, what: EventKind::Freed { id } });
                        }
                        Some(EventKind::Allocated { pool, id, bytes: event.bytes, category })
                    }
                    Kind::Freed(pool) => live.remove(&(pool, event.address)).map(|id| EventKind::Freed { id }),
                    Kind::Stage => {
                        let name = buffer.stages.get(event.address as usize).copied().unwrap_or_default();
                        Some(EventKind::Stage { name: name.to_string() })
                    }
                };
                trace.events.extend(what.map(|what| MemoryEvent { nanos: event.nanos, what }));
            }
        });
        trace // dropping `self` frees the buffer
    }
}

impl Drop for MemoryRecorder {
    fn drop(&mut self) {
        ACTIVE.store(false, Ordering::SeqCst);
        BUFFER.with(|buffer| {
            if let Some(layout) = buffer.layout() {
                // SAFETY: the memory is the system allocator's, with this layout; the capacity is 0 from here on.
                unsafe { System.dealloc(buffer.start.cast(), layout) };
            }
            (buffer.start, buffer.capacity, buffer.len) = (std::ptr::null_mut(), 0, 0);
        });
    }
}

/// Records the start of a stage, if a recording is running.
pub fn mark_stage(name: &'static str) {
    record(|buffer| {
        let index = buffer.stage_count;
        if let Some(place) = buffer.stages.get_mut(index) {
            *place = name;
            buffer.stage_count += 1;
            buffer.push(Kind::Stage, index as u64, 0);
        }
    });
}

/// Records an allocation of `bytes` bytes. For allocators.
pub(crate) fn allocated(pool: Pool, address: u64, bytes: usize) {
    record(|buffer| buffer.push(Kind::Allocated(pool, Category::current()), address, bytes as u64));
}

/// Records a free, before the memory can be allocated again. For allocators.
pub(crate) fn freed(pool: Pool, address: u64) {
    record(|buffer| buffer.push(Kind::Freed(pool), address, 0));
}

/// Takes the lock before a fork.
pub(crate) fn lock_for_fork() {
    BUFFER.acquire();
}

/// Releases the lock after a fork, in the parent and in the child.
pub(crate) fn unlock_after_fork() {
    BUFFER.release();
}

fn record(write: impl FnOnce(&mut Buffer)) {
    if ACTIVE.load(Ordering::Relaxed) {
        BUFFER.with(write);
    }
}
