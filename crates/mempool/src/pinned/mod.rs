//! Pinned (page-locked) memory, which a copy engine reads and writes without the CPU.
//!
//! Pinning takes the driver long, and pinned pages are not available to the rest of the machine. So memory is pinned in
//! chunks that are reused, and their total has a limit.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "no_cuda.rs"]
mod cuda;
#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::arena::Arena;
use crate::error::{Error, Result};
use crate::faults;
use crate::policy::Policy;
use crate::statistics::Statistics;

/// An alignment that suits copy engines, with size classes 1.6 % apart.
const POLICY: Policy = Policy { granule: 256, divisions: 64, split: 4096 };
/// The least size of a chunk, of which all sizes are multiples: a huge page.
const CHUNK: usize = 2 << 20;
/// The maximum of blocks of one pool. A network has about ten segments.
const BLOCKS: usize = 1024;
/// In the arena's addresses, chunk `i` begins at `i + 1` times this value. So no two chunks are adjacent, wherever the
/// driver allocates them: a block must not span two of them.
const SPACING: usize = 1 << 40;

/// The configuration of a [`PinnedPool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinnedConfig {
    /// The most bytes that the pool pins.
    pub cap: usize,
    /// Whether the memory is write-combined, which bypasses the CPU's caches: copies to a GPU are a little faster on
    /// some machines, and reading it is very slow.
    pub write_combined: bool,
}

impl PinnedConfig {
    /// Ordinary, cached memory, of which at most `cap` bytes are pinned.
    pub fn with_cap(cap: usize) -> Self {
        Self { cap, write_combined: false }
    }
}

/// A pool of pinned memory. Its clones are the same pool.
///
/// ```no_run
/// use kiln_mempool::{PinnedConfig, PinnedPool};
///
/// let pool = PinnedPool::new(0, PinnedConfig::with_cap(512 << 20))?;
/// let mut block = pool.allocate(94 << 20)?; // an error beyond the cap: take pageable memory then
/// block.fill(0);
/// # Ok::<(), kiln_mempool::Error>(())
/// ```
#[derive(Clone)]
pub struct PinnedPool(Arc<Shared>);

/// A block of a [`PinnedPool`], with arbitrary contents at first.
///
/// It returns to the pool when it is dropped. Copies that read or write it must have ended then.
pub struct PinnedBlock {
    chunk: Arc<Chunk>,
    /// In the arena's addresses.
    place: usize,
    offset: usize,
    len: usize,
    pool: Arc<Shared>,
}

/// A source of pinned memory.
trait Source: Send + Sync {
    /// Allocates a chunk of `bytes` bytes.
    fn lock(&self, bytes: usize) -> Result<Chunk>;
}

/// Memory that its source frees when it is dropped.
struct Chunk {
    start: *mut u8,
    len: usize,
    release: Box<dyn Fn(*mut u8, usize) + Send + Sync>,
}

// SAFETY: the chunk owns its memory; each part of it is handed out to one block at a time.
#[allow(unsafe_code)]
unsafe impl Send for Chunk {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Chunk {}

impl Drop for Chunk {
    fn drop(&mut self) {
        (self.release)(self.start, self.len);
    }
}

struct Shared {
    source: Box<dyn Source>,
    cap: usize,
    state: Mutex<State>,
}

struct State {
    arena: Box<Arena<BLOCKS>>,
    /// The chunk whose addresses begin at the index's spacing. `None` if it has been released.
    chunks: Vec<Option<Arc<Chunk>>>,
    locked: usize,
    peak_locked: usize,
}

impl PinnedPool {
    /// A pool for copies to and from the GPU of this number. Nothing is pinned yet.
    ///
    /// # Errors
    /// [`Error::NoCuda`] in a build without CUDA, [`Error::Driver`] where the GPU cannot be opened.
    pub fn new(ordinal: usize, config: PinnedConfig) -> Result<Self> {
        Ok(Self::over(cuda::source(ordinal, config.write_combined)?, config.cap))
    }

    fn over(source: Box<dyn Source>, cap: usize) -> Self {
        let arena = Box::new(Arena::new());
        let state = State { arena, chunks: Vec::new(), locked: 0, peak_locked: 0 };
        Self(Arc::new(Shared { source, cap, state: Mutex::new(state) }))
    }

    /// A block of `bytes` bytes, aligned to 256.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] above the limit of the pool or the system, [`Error::Driver`].
    pub fn allocate(&self, bytes: usize) -> Result<PinnedBlock> {
        let shared = &self.0;
        let mut state = shared.state();
        let refused = |state: &State| Error::OutOfMemory {
            pool: "pinned",
            requested: bytes as u64,
            used: state.arena.statistics().used as u64,
            ceiling: Some(shared.cap as u64),
        };
        if faults::should_fail() {
            return Err(refused(&state));
        }
        let mut got = state.arena.allocate(&POLICY, bytes);
        if got.is_none() {
            let least = POLICY.class(bytes).and_then(|size| size.checked_next_multiple_of(CHUNK));
            let size = least.filter(|&size| size < SPACING).ok_or_else(|| refused(&state))?;
            if state.locked.saturating_add(size) > shared.cap {
                state.release(); // chunks that are too small for this request
            }
            if state.locked.saturating_add(size) > shared.cap {
                return Err(refused(&state));
            }
            state.add(shared.source.lock(size)?);
            got = state.arena.allocate(&POLICY, bytes);
        }
        let place = got.ok_or_else(|| refused(&state))?.addresses.start;
        let chunk = state.chunks.get(place / SPACING - 1).cloned().flatten().ok_or_else(|| refused(&state))?;
        drop(state);
        Ok(PinnedBlock { chunk, place, offset: place % SPACING, len: bytes, pool: shared.clone() })
    }

    /// The current statistics. All pinned bytes count as reserved; system calls are the driver's.
    pub fn statistics(&self) -> Statistics {
        let state = self.0.state();
        let (reserved, peak_reserved) = (state.locked, state.peak_locked);
        let counted = state.arena.statistics();
        let largest_unused = counted.largest_unused.max(state.arena.largest_free());
        Statistics { reserved, peak_reserved, largest_unused, ..counted }
    }

    /// Frees unused chunks. Returns their size in bytes.
    pub fn trim(&self) -> usize {
        self.0.state().release()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    /// Adds a new chunk to the arena. With a full table the chunk is dropped, and the request fails.
    fn add(&mut self, chunk: Chunk) {
        let free = self.chunks.iter().position(Option::is_none).unwrap_or(self.chunks.len());
        let start = (free + 1) * SPACING;
        if !self.arena.add(start..start + chunk.len) {
            return;
        }
        self.arena.count_system_calls(1);
        self.locked += chunk.len;
        self.peak_locked = self.peak_locked.max(self.locked);
        let chunk = Some(Arc::new(chunk));
        match self.chunks.get_mut(free) {
            Some(place) => *place = chunk,
            None => self.chunks.push(chunk),
        }
    }

    fn release(&mut self) -> usize {
        let before = self.locked;
        for (i, place) in self.chunks.iter_mut().enumerate() {
            let start = (i + 1) * SPACING;
            if let Some(chunk) = place.take_if(|chunk| self.arena.remove(start..start + chunk.len)) {
                self.arena.count_system_calls(1);
                self.locked -= chunk.len;
            }
        }
        before - self.locked
    }
}

impl fmt::Debug for PinnedPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedPool").field("cap", &self.0.cap).field("statistics", &self.statistics()).finish()
    }
}

impl fmt::Debug for PinnedBlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PinnedBlock").field("len", &self.len).finish()
    }
}

impl Deref for PinnedBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the arena has handed these bytes of the chunk out to this block only, and the chunk lives as long as
        // the block. The system returned them as pages with some values, so they are initialized.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(self.chunk.start.add(self.offset), self.len)
        }
    }
}

impl DerefMut for PinnedBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; the reference is exclusive.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.chunk.start.add(self.offset), self.len)
        }
    }
}

impl Drop for PinnedBlock {
    fn drop(&mut self) {
        self.pool.state().arena.free(self.place);
    }
}
