//! The memory of a recorded step: one block, in which every tensor of the step has a planned address.
//!
//! A step that is captured into a CUDA graph must find its tensors at the same addresses in every replay. Left to the
//! driver, the graph would own memory for them, outside of the pool, its ceiling and its statistics. So the step first
//! runs once without capture: [`trace_allocations`] records its allocations, and [`AllocationTrace::plan`] lays them out. A
//! [`Scratch`] is one block of the pool of that size. During the capture ([`Scratch::record`]) the same allocations get
//! their planned addresses, and the graph holds addresses only: a replay allocates nothing. An allocation that was not
//! in the first run is refused, which ends the capture.
//!
//! Between replays the block is unused. [`Scratch::with_arena`] serves the allocations of another stage from it.
//!
//! Without the feature `interpose` no allocation arrives here: the record is empty, the block has no bytes, and the
//! graph owns the memory of its step.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};
use cudarc::driver::{CudaStream, DriverError};
use parking_lot::{Mutex, MutexGuard};

use super::allocator;
use super::block::{AllocationTrace, Block, ScratchPlan};
use crate::error::{Error, Result};
use crate::faults;
use crate::trace::Category;

/// How the allocations of a thread are handled.
enum Scope {
    Trace(AllocationTrace),
    Record { block: Arc<Mutex<Block>>, plan: Arc<ScratchPlan>, next: usize, problem: Option<String> },
    Arena { block: Arc<Mutex<Block>>, stream: usize },
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// The blocks of the process. A free on any thread looks its address up here.
static BLOCKS: Mutex<Vec<Arc<Mutex<Block>>>> = Mutex::new(Vec::new());
/// The number of blocks. It is mostly 0 or 1, and with 0 a free skips the lookup.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Calls `run` and records the allocations that this thread makes on a GPU meanwhile.
pub fn trace_allocations<T>(run: impl FnOnce() -> T) -> (T, AllocationTrace) {
    let (result, scope) = within(Scope::Trace(AllocationTrace::default()), run);
    let Scope::Trace(recorded) = scope else { return (result, AllocationTrace::default()) };
    (result, recorded)
}

/// A block of a GPU's pool for a recorded step, which several steps may share: only one of them runs at a time.
#[derive(Debug)]
pub struct Scratch {
    memory: Arc<Memory>,
    plan: Arc<ScratchPlan>,
}

/// The memory of a block. It is freed with the last step that uses it.
#[derive(Debug)]
struct Memory {
    block: Arc<Mutex<Block>>,
    base: CUdeviceptr,
    bytes: usize,
    stream: Arc<CudaStream>,
}

impl Scratch {
    /// Allocates a block for `plan` from the pool of the stream's GPU. The unused memory of the pool, which the first
    /// run has left, is released before.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn new(stream: &Arc<CudaStream>, plan: ScratchPlan) -> Result<Self> {
        let (context, raw, bytes) = (stream.context(), stream.cu_stream(), plan.bytes.max(1));
        let failed = |error: CUresult| match error {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (used, ceiling) = allocator::usage(raw);
                Error::OutOfMemory { pool: "GPU", requested: bytes as u64, used, ceiling }
            }
            error => Error::driver(context.ordinal(), "allocating the block of a recorded step", DriverError(error)),
        };
        context.bind_to_thread().map_err(|error| failed(error.0))?;
        if faults::should_fail() {
            return Err(failed(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        }
        allocator::trim(raw);
        // SAFETY: the stream is valid and of the current context; the block is freed on it when this value is dropped.
        let base = unsafe { allocator::allocate(bytes, raw) }.map_err(failed)?;
        let block = Arc::new(Mutex::new(Block::new(base, bytes)));
        let mut blocks = BLOCKS.lock();
        blocks.push(block.clone());
        COUNT.store(blocks.len(), Ordering::SeqCst);
        let memory = Memory { block, base, bytes, stream: stream.clone() };
        Ok(Self { memory: Arc::new(memory), plan: Arc::new(plan) })
    }

    /// Shares the block with another step on the same stream; `None` if `plan` needs a larger one.
    pub fn share(&self, plan: ScratchPlan) -> Option<Self> {
        (plan.bytes <= self.memory.bytes).then(|| Self { memory: self.memory.clone(), plan: Arc::new(plan) })
    }

    /// Calls `run`, whose allocations on this thread get their planned addresses. The second result says which
    /// allocation differed from the plan, or that some memory was not freed at the end.
    pub fn record<T>(&self, run: impl FnOnce() -> T) -> (T, Option<String>) {
        let (block, plan) = (self.memory.block.clone(), self.plan.clone());
        let (result, scope) = within(Scope::Record { block, plan, next: 0, problem: None }, run);
        let problem = match scope {
            Scope::Record { problem, .. } => problem,
            _ => None,
        };
        let problem = problem.or_else(|| (!self.is_idle()).then(|| "some memory of the step is still in use".into()));
        (result, problem)
    }

    /// Calls `run`, and serves its allocations on this thread and this stream from the block, as far as they fit.
    /// Weights are not served from it, since they outlive the call. [`Scratch::is_idle`] says whether everything has
    /// been freed.
    pub fn with_arena<T>(&self, run: impl FnOnce() -> T) -> T {
        let stream = self.memory.stream.cu_stream() as usize;
        within(Scope::Arena { block: self.memory.block.clone(), stream }, run).0
    }

    /// Whether nothing of the block is in use. Only then may the recorded step be replayed.
    pub fn is_idle(&self) -> bool {
        locked(&self.memory.block).is_idle()
    }

    /// The bytes of the block that the step uses.
    pub fn bytes(&self) -> usize {
        self.plan.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // A tensor that still lies in the block would lose its memory. Then the block is leaked.
        if !locked(&self.block).is_idle() {
            return;
        }
        let mut blocks = BLOCKS.lock();
        blocks.retain(|block| !Arc::ptr_eq(block, &self.block));
        COUNT.store(blocks.len(), Ordering::SeqCst);
        drop(blocks);
        let bound = self.stream.context().bind_to_thread();
        // SAFETY: the block is from `allocator::allocate` on this stream, and nothing of it is in use.
        let freed = bound.is_ok().then(|| unsafe { allocator::free(self.base, self.stream.cu_stream()) });
        debug_assert!(freed == Some(CUresult::CUDA_SUCCESS), "freeing the block of a recorded step: {freed:?}");
    }
}

/// Serves an allocation from a block, or refuses it. `None` where the pool serves it.
#[cfg_attr(not(feature = "interpose"), expect(dead_code, reason = "called by the replaced functions"))]
pub(super) fn allocate(bytes: usize, stream: CUstream) -> Option<Result<CUdeviceptr, CUresult>> {
    with_scope(|scope| match scope {
        Scope::Trace(_) => None,
        Scope::Record { block, plan, next, problem } => {
            let found = match plan.places.get(*next) {
                Some(&(size, offset)) if size == bytes => {
                    locked(block).allocate_planned(offset, bytes).ok_or("gets an address that is still in use")
                }
                Some(_) => Err("has another size than in the first run"),
                None => Err("was not in the first run"),
            };
            Some(found.map_err(|reason| {
                problem.get_or_insert_with(|| format!("allocation {next} of {bytes} bytes {reason}"));
                CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            }))
            .inspect(|_| *next += 1)
        }
        Scope::Arena { block, stream: own } => {
            let stays = matches!(Category::current(), Category::Weights | Category::Ring | Category::Cache);
            if stays || stream as usize != *own {
                return None;
            }
            locked(block).allocate_unplanned(bytes).map(Ok)
        }
    })
}

/// Records an allocation that the pool served.
#[cfg_attr(not(feature = "interpose"), expect(dead_code, reason = "called by the replaced functions"))]
pub(super) fn record_allocation(address: CUdeviceptr, bytes: usize) {
    with_scope(|scope| {
        if let Scope::Trace(recorded) = scope {
            recorded.allocated(address, bytes);
        }
        None::<()>
    });
}

/// Records a free.
#[cfg_attr(not(feature = "interpose"), expect(dead_code, reason = "called by the replaced functions"))]
pub(super) fn record_free(address: CUdeviceptr) {
    with_scope(|scope| {
        if let Scope::Trace(recorded) = scope {
            recorded.freed(address);
        }
        None::<()>
    });
}

/// Frees memory of a block. False where the address is in no block.
#[cfg_attr(not(feature = "interpose"), expect(dead_code, reason = "called by the replaced functions"))]
pub(super) fn free(address: CUdeviceptr) -> bool {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let blocks = BLOCKS.lock();
    let found = blocks.iter().find(|block| locked(block).contains(address));
    found.is_some_and(|block| locked(block).free(address))
}

/// Sets the thread's scope while `run` runs, and returns it. The scope before is restored, after a panic too.
fn within<T>(scope: Scope, run: impl FnOnce() -> T) -> (T, Scope) {
    struct Restore(Option<Scope>);
    impl Drop for Restore {
        fn drop(&mut self) {
            let _ = SCOPE.try_with(|current| current.replace(self.0.take()));
        }
    }
    let before = Restore(SCOPE.with(|current| current.replace(Some(scope))));
    let result = run();
    let scope = SCOPE.with(|current| current.take());
    drop(before);
    (result, scope.unwrap_or_else(|| Scope::Trace(AllocationTrace::default())))
}

fn with_scope<T>(f: impl FnOnce(&mut Scope) -> Option<T>) -> Option<T> {
    SCOPE.try_with(|scope| f(scope.try_borrow_mut().ok()?.as_mut()?)).ok()?
}

fn locked(block: &Mutex<Block>) -> MutexGuard<'_, Block> {
    block.lock()
}
