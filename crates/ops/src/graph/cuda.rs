//! Graphs through CUDA's stream capture.
#![allow(unsafe_code)]

use candle_core::Device;
use candle_core::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle_core::cuda::cudarc::driver::{CudaGraph, CudaStream};
use std::sync::Arc;

use kiln_mempool::{Scratch, ScratchPlan, rehearse};

use super::recorder::Recorder;
use crate::cuda::driver;
use crate::error::{Error, Result};

/// A recorded run.
pub struct Graph {
    graph: Option<CudaGraph>,
    /// The memory of what the run makes and drops again.
    scratch: Scratch,
    stream: Arc<CudaStream>,
    /// Keeps the constants that the run reads.
    _recorder: Arc<Recorder>,
}

/// What is known of a run that was done once: the memory that it needs, and the constants that it reads.
#[derive(Debug, Clone)]
pub struct Prepared {
    plan: ScratchPlan,
    recorder: Arc<Recorder>,
}

// SAFETY: CUDA asks that calls on one graph do not overlap, from whichever threads they come. All of them need the
// graph by `&mut` or by value; the context is bound to the calling thread by each call.
unsafe impl Send for Graph {}

/// Whether runs on this device can be recorded.
pub fn is_recordable(device: &Device) -> bool {
    device.is_cuda()
}

/// Does `run` as it will be recorded later: whatever libraries make on their first use, and what small constants they
/// copy to the card, is there afterwards; and what memory it asks for is known. It runs on a thread of its own.
///
/// # Errors
/// [`Error::Driver`] where the system gives no thread; what `run` reports is its result.
pub fn prepare<T: Send>(device: &Device, run: impl FnOnce() -> T + Send) -> Result<(T, Prepared)> {
    let recorder = Arc::new(Recorder::start()?);
    let (result, rehearsal) = recorder.run(|| rehearse(|| keeping_copies(device, run)));
    Ok((result, Prepared { plan: rehearsal.plan(), recorder }))
}

/// candle keeps the strides and indices that it copies to a card meanwhile, and uses the copies again.
fn keeping_copies<T>(device: &Device, run: impl FnOnce() -> T) -> T {
    let _kept = device.as_cuda_device().ok().map(|device| device.enable_cuda_graph_htod_cache());
    run()
}

impl Graph {
    /// Records the work that `run` gives to the card; nothing of it is done yet. The same work, with the same requests
    /// for memory in the same order, was done once by [`prepare`]. Tensors that were made before must outlive the graph;
    /// what `run` makes must be gone at its end.
    ///
    /// # Errors
    /// What `run` reports, [`Error::Pool`] where there is no room for what it makes, and [`Error::Driver`] where
    /// something in it cannot be recorded. The card works on as before.
    pub fn record<E: From<Error> + Send>(
        device: &Device,
        prepared: &Prepared,
        run: impl FnOnce() -> Result<(), E> + Send,
    ) -> Result<Self, E> {
        prepared.recorder.run(|| Self::record_here(device, prepared, run))
    }

    fn record_here<E: From<Error>>(
        device: &Device,
        prepared: &Prepared,
        run: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        let stream = device.as_cuda_device().map_err(Error::from)?.cuda_stream();
        // Relaxed: other threads may use the card meanwhile, and libraries may load code.
        let scratch = Scratch::new(&stream, prepared.plan.clone()).map_err(Error::from)?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).map_err(driver)?;
        let (result, problem) = scratch.record(|| keeping_copies(device, run));
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        // Memory that could not be freed while recording is reported at the next call; it must not fail that.
        let freed = stream.context().check_err();
        if let Some(problem) = problem {
            return Err(Error::Driver(format!("the run was not as it was prepared: {problem}")).into());
        }
        result?;
        freed.map_err(driver)?;
        match graph.map_err(driver)? {
            Some(graph) => Ok(Self { graph: Some(graph), scratch, stream, _recorder: prepared.recorder.clone() }),
            None => Err(Error::Driver("CUDA's driver: the recording is empty".into()).into()),
        }
    }

    /// The size of the block in bytes.
    pub fn bytes(&self) -> usize {
        self.scratch.bytes()
    }

    /// Does `run`, with what it asks for coming from the graph's block as far as that goes. All of that must be gone
    /// before the next replay: copy what is to stay.
    pub fn lend<T>(&self, run: impl FnOnce() -> T) -> T {
        self.scratch.lend(run)
    }

    /// Starts the recorded work, after what the card was given before.
    ///
    /// # Errors
    /// [`Error::Driver`], and nothing is done, where somebody still has memory that was lent.
    pub fn replay(&mut self) -> Result<()> {
        if !self.scratch.is_idle() {
            return Err(Error::Driver("a recorded step's memory was lent out and is still in use".into()));
        }
        match &self.graph {
            Some(graph) => graph.launch().map_err(driver),
            None => Ok(()),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // The block goes back to the pool once the last run has ended.
        if let Err(error) = self.stream.synchronize() {
            tracing::warn!("freeing a recorded step: {error}");
        }
        self.graph = None;
    }
}
