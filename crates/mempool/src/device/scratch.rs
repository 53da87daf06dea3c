//! The memory of a recorded step.
//!
//! A step that is recorded into a graph must find its tensors at the same addresses in every replay. Left to the driver,
//! the graph would own memory for them, beside the pool and outside of its ceiling and its counters. So the step is
//! rehearsed: [`rehearse`] notes what it asks for, and [`Rehearsal::plan`] lays that out. A [`Scratch`] is one block of
//! the pool of that size. While it records ([`Scratch::record`]), the same requests get their planned places, and the
//! graph only holds addresses: a replay allocates nothing. A request that was not rehearsed is refused, which ends the
//! recording.
//!
//! Between replays the block is free. [`Scratch::lend`] serves another stage's requests from it.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cudarc::driver::sys::{CUdeviceptr, CUresult, CUstream};
use cudarc::driver::{CudaStream, DriverError};

use super::block::{Block, Rehearsal, ScratchPlan};
use super::hook;
use crate::error::{Error, Result};
use crate::faults;
use crate::trace::Category;

/// What happens to the requests of a thread.
enum Scope {
    Rehearse(Rehearsal),
    Record { block: Arc<Mutex<Block>>, plan: Arc<ScratchPlan>, next: usize, problem: Option<String> },
    Lend { block: Arc<Mutex<Block>>, stream: usize },
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Blocks of the process, which frees of any thread look through.
static BLOCKS: Mutex<Vec<Arc<Mutex<Block>>>> = Mutex::new(Vec::new());
/// How many there are: mostly none or one, and then a free need not look.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Does `run`, and notes what this thread asks a card for meanwhile.
pub fn rehearse<T>(run: impl FnOnce() -> T) -> (T, Rehearsal) {
    let (result, scope) = within(Scope::Rehearse(Rehearsal::default()), run);
    let Scope::Rehearse(rehearsal) = scope else { return (result, Rehearsal::default()) };
    (result, rehearsal)
}

/// A block of a card's pool for a recorded run.
#[derive(Debug)]
pub struct Scratch {
    block: Arc<Mutex<Block>>,
    plan: Arc<ScratchPlan>,
    base: CUdeviceptr,
    stream: Arc<CudaStream>,
}

impl Scratch {
    /// Takes a block for `plan` from the pool of the stream's card. What waits in the pool, which is what the rehearsal
    /// left, is given back before.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::Driver`].
    pub fn new(stream: &Arc<CudaStream>, plan: ScratchPlan) -> Result<Self> {
        let (context, raw, bytes) = (stream.context(), stream.cu_stream(), plan.bytes.max(1));
        let failed = |error: CUresult| match error {
            CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let (used, ceiling) = hook::usage(context.cu_device());
                Error::OutOfMemory { pool: "card", asked: bytes as u64, used, ceiling }
            }
            error => Error::driver(context.ordinal(), "making room for a recorded step", DriverError(error)),
        };
        context.bind_to_thread().map_err(|error| failed(error.0))?;
        if faults::strike() {
            return Err(failed(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        }
        hook::trim_current(context.cu_device(), raw);
        // SAFETY: the stream is valid and of the current context; the block is freed on it when this is dropped.
        let base = unsafe { hook::allocate(bytes, raw) }.map_err(failed)?;
        let block = Arc::new(Mutex::new(Block::new(base, bytes)));
        let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.push(block.clone());
        COUNT.store(blocks.len(), Ordering::SeqCst);
        Ok(Self { block, plan: Arc::new(plan), base, stream: stream.clone() })
    }

    /// Does `run`, whose requests on this thread get their planned places, and says what went wrong with them.
    pub fn record<T>(&self, run: impl FnOnce() -> T) -> (T, Option<String>) {
        let (block, plan) = (self.block.clone(), self.plan.clone());
        let (result, scope) = within(Scope::Record { block, plan, next: 0, problem: None }, run);
        let problem = match scope {
            Scope::Record { problem, .. } => problem,
            _ => None,
        };
        let problem = problem.or_else(|| (!self.is_idle()).then(|| "something of the step outlives it".into()));
        (result, problem)
    }

    /// Does `run`, and serves what it asks for on this thread and this stream from the block, as far as it fits. Weights
    /// are not served from it, since they stay. [`Scratch::is_idle`] says whether all was given back at the end.
    pub fn lend<T>(&self, run: impl FnOnce() -> T) -> T {
        let stream = self.stream.cu_stream() as usize;
        within(Scope::Lend { block: self.block.clone(), stream }, run).0
    }

    /// Whether nobody has anything of the block: only then may the recorded run be replayed.
    pub fn is_idle(&self) -> bool {
        locked(&self.block).is_idle()
    }

    /// The block's size.
    pub fn bytes(&self) -> usize {
        self.plan.bytes
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What somebody still has of it would lose its memory: then the block stays, for good.
        if !self.is_idle() {
            return;
        }
        let mut blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.retain(|block| !Arc::ptr_eq(block, &self.block));
        COUNT.store(blocks.len(), Ordering::SeqCst);
        drop(blocks);
        let bound = self.stream.context().bind_to_thread();
        // SAFETY: the block is from `hook::allocate` on this stream, and nobody has anything of it.
        let freed = bound.is_ok().then(|| unsafe { hook::free(self.base, self.stream.cu_stream()) });
        debug_assert!(freed == Some(CUresult::CUDA_SUCCESS), "freeing a recorded step's memory: {freed:?}");
    }
}

/// Serves a request from a block, or refuses it; `None` where it is the pool's.
pub(super) fn serve(bytes: usize, stream: CUstream) -> Option<Result<CUdeviceptr, CUresult>> {
    with_scope(|scope| match scope {
        Scope::Rehearse(_) => None,
        Scope::Record { block, plan, next, problem } => {
            let found = match plan.places.get(*next) {
                Some(&(size, offset)) if size == bytes => {
                    locked(block).play(offset, bytes).ok_or("a place that is not free yet")
                }
                Some(_) => Err("another size than before"),
                None => Err("more than before"),
            };
            Some(found.map_err(|what| {
                problem.get_or_insert_with(|| format!("request {next} of {bytes} bytes asks for {what}"));
                CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            }))
            .inspect(|_| *next += 1)
        }
        Scope::Lend { block, stream: own } => {
            let stays = matches!(Category::current(), Category::Weights | Category::Ring | Category::Cache);
            if stays || stream as usize != *own {
                return None;
            }
            locked(block).lend(bytes).map(Ok)
        }
    })
}

/// Notes that the pool served a request.
pub(super) fn allocated(address: CUdeviceptr, bytes: usize) {
    with_scope(|scope| {
        if let Scope::Rehearse(rehearsal) = scope {
            rehearsal.allocated(address, bytes);
        }
        None::<()>
    });
}

/// Notes that something goes back to the pool.
pub(super) fn freed(address: CUdeviceptr) {
    with_scope(|scope| {
        if let Scope::Rehearse(rehearsal) = scope {
            rehearsal.freed(address);
        }
        None::<()>
    });
}

/// Takes back what is a block's; false where the address is none of theirs.
pub(super) fn take_back(address: CUdeviceptr) -> bool {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let blocks = BLOCKS.lock().unwrap_or_else(PoisonError::into_inner);
    let found = blocks.iter().find(|block| locked(block).contains(address));
    found.is_some_and(|block| locked(block).take_back(address))
}

/// Puts `scope` in place for the time of `run`, and gives it back. The one before is there again afterwards, after a
/// panic too.
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
    (result, scope.unwrap_or_else(|| Scope::Rehearse(Rehearsal::default())))
}

fn with_scope<T>(use_it: impl FnOnce(&mut Scope) -> Option<T>) -> Option<T> {
    SCOPE.try_with(|scope| use_it(scope.try_borrow_mut().ok()?.as_mut()?)).ok()?
}

fn locked(block: &Mutex<Block>) -> MutexGuard<'_, Block> {
    block.lock().unwrap_or_else(PoisonError::into_inner)
}
