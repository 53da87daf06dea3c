//! Copies from pageable memory: a thread fills two pinned buffers in turns and submits their copies, while the caller goes on. Slabs
//! that are read for each copy come from another thread before it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::thread::JoinHandle;

use candle_core::cuda::cudarc::driver::sys::CUevent_flags;
use candle_core::cuda::cudarc::driver::{CudaEvent, CudaStream, result};
use kiln_mempool::{PinnedBlock, PinnedConfig, PinnedPool};
use rayon::prelude::*;
use rayon::{ThreadPool, ThreadPoolBuilder};

use super::reader::{Piece, read_ahead};
use super::{MOVED, Point, Submission, bytes_of, submitted};
use crate::cuda::driver;
use crate::error::{Error, Result};
use crate::stream::{HostSlab, Memory};

/// The size of a staging buffer. There are two: one is filled while the other is copied. They are large enough that the
/// overhead of a copy does not matter.
const STAGING: usize = 8 << 20;
/// Threads that fill a buffer, at most: more are not faster, since memory is what limits them. They are no others' threads: those may be
/// waiting for a copy.
const THREADS: usize = 4;
/// Pieces of slabs that were read and not staged yet. A ring has about twelve, so that no more is read ahead than the ring holds.
const PIECES_AHEAD: usize = 8;

/// A copy for the thread.
pub(super) struct Task {
    pub(super) slab: Arc<HostSlab>,
    /// The bytes of the slab. The caller has checked that it has them.
    pub(super) part: Range<usize>,
    /// The address of the first byte in the ring. The caller has checked that the copy fits there.
    pub(super) to: u64,
    /// The points of the GPU's work before it.
    pub(super) after: Vec<Arc<Point>>,
    /// Where its events appear.
    pub(super) copy: Arc<Submission>,
}

impl Drop for Task {
    /// Whoever waits for a copy that was not submitted gets an error.
    fn drop(&mut self) {
        let _ = self.copy.set(Err("the thread that copies weights to the GPU has ended".into()));
    }
}

/// The threads. Dropping them waits until they have submitted all copies, and these have ended.
pub(super) struct StagingThreads {
    tasks: Option<Sender<Task>>,
    threads: Vec<JoinHandle<()>>,
}

impl StagingThreads {
    /// Starts them for the stream of copies: one, and another one if it `reads` slabs.
    ///
    /// # Errors
    /// [`Error::Driver`] where the system gives no pinned memory or no thread.
    pub(super) fn start(copies: &Arc<CudaStream>, reads: bool) -> Result<Self> {
        let (staging, copies) = (Staging::new(copies)?, copies.clone());
        let (tasks, queue) = channel();
        let mut this = Self { tasks: Some(tasks), threads: Vec::new() };
        if reads {
            let (pieces, read) = sync_channel(PIECES_AHEAD);
            this.spawn("weights", move || read_ahead(&queue, &pieces))?;
            this.spawn("staging", move || work(read, staging, &copies))?;
        } else {
            this.spawn("staging", move || work(queue.into_iter().map(Piece::of), staging, &copies))?;
        }
        Ok(this)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(work);
        let thread = thread.map_err(|error| Error::Driver(format!("a thread that copies weights: {error}")))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Has a copy submitted after those before it.
    pub(super) fn submit(&self, task: Task) {
        if let Some(tasks) = &self.tasks {
            let _ = tasks.send(task); // a task that no thread takes is dropped, which is its error
        }
    }
}

impl Drop for StagingThreads {
    fn drop(&mut self) {
        self.tasks = None; // each thread finds its queue closed
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread that copies weights to the GPU has failed");
            }
        }
    }
}

fn work(queue: impl IntoIterator<Item = Piece>, mut staging: Staging, copies: &CudaStream) {
    for piece in queue {
        let result = submit(&piece, &mut staging, copies);
        let _ = piece.task.copy.set(result.map_err(|error| error.to_string())); // nothing else has set it
    }
    // Copies read the buffers, which are freed next.
    if let Err(error) = copies.synchronize() {
        tracing::warn!("copying weights: {error}");
    }
}

fn submit(piece: &Piece, staging: &mut Staging, copies: &CudaStream) -> Result<super::Events> {
    copies.context().bind_to_thread().map_err(driver)?;
    let Piece { task: Task { slab, part, to, after, .. }, read } = piece;
    let mut staged = |tensor| bytes_of(tensor, |bytes| staging.copy(&bytes[part.clone()], *to, copies))?;
    submitted(copies, after, || match &slab.0 {
        Memory::Pinned(block) => {
            // SAFETY: the range is inside of the ring, which waits for this thread and for the copy before its memory is freed; the
            // ring keeps the block as long, and nothing writes it meanwhile.
            unsafe { result::memcpy_htod_async(*to, &block[part.clone()], copies.cu_stream()) }.map_err(driver)
        }
        Memory::Pageable(tensor) => staged(tensor),
        Memory::Read(..) => match read {
            Some(tensor) => staged(tensor),
            None => Err(Error::Driver("weights that were not read cannot be copied".into())),
        },
    })
}

/// The buffers.
struct Staging {
    buffers: [PinnedBlock; 2],
    /// The event after the last copy out of each.
    ends: [Option<CudaEvent>; 2],
    next: usize,
    threads: ThreadPool,
}

impl Staging {
    fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        let locked = |error: kiln_mempool::Error| Error::Driver(error.to_string());
        let config = PinnedConfig::with_cap(4 * STAGING);
        let pool = PinnedPool::new(stream.context().ordinal(), config).map_err(locked)?;
        let buffers = [pool.allocate(STAGING).map_err(locked)?, pool.allocate(STAGING).map_err(locked)?];
        let threads = ThreadPoolBuilder::new().num_threads(rayon::current_num_threads().min(THREADS));
        let threads = threads.thread_name(|i| format!("staging-{i}")).build();
        let threads = threads.map_err(|error| Error::Driver(format!("threads that copy weights: {error}")))?;
        Ok(Self { buffers, ends: [None, None], next: 0, threads })
    }

    fn copy(&mut self, bytes: &[u8], to: u64, copies: &CudaStream) -> Result<()> {
        for (i, part) in bytes.chunks(STAGING).enumerate() {
            let (buffer, end) = (&mut self.buffers[self.next], &mut self.ends[self.next]);
            if let Some(end) = end.take() {
                end.synchronize().map_err(driver)?;
            }
            let buffer = &mut buffer[..part.len()];
            self.threads.install(|| {
                buffer
                    .par_chunks_mut(MOVED)
                    .zip(part.par_chunks(MOVED))
                    .for_each(|(to, from)| to.copy_from_slice(from));
            });
            // SAFETY: by the caller's contract the bytes from `to` on are inside of the ring; the buffer is not written
            // again before the event after this copy, and is freed after all copies have ended.
            unsafe { result::memcpy_htod_async(to + (i * STAGING) as u64, buffer, copies.cu_stream()) }
                .map_err(driver)?;
            let flags = CUevent_flags::CU_EVENT_BLOCKING_SYNC;
            *end = Some(copies.record_event(Some(flags)).map_err(driver)?);
            self.next = 1 - self.next;
        }
        Ok(())
    }
}
