//! CUDA graphs through stream capture.
#![allow(unsafe_code)]

use candle_core::Device;
use candle_core::cuda::cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle_core::cuda::cudarc::driver::{CudaGraph, CudaStream};
use std::sync::Arc;

use kiln_mempool::{Scratch, ScratchPlan, trace_allocations};

use super::recorder::Recorder;
use crate::cuda::driver;
use crate::error::{Error, Result};

/// A captured run.
pub struct Graph {
    graph: Option<CudaGraph>,
    /// The memory of tensors that exist only inside of the run.
    scratch: Scratch,
    stream: Arc<CudaStream>,
    /// Keeps the constants that the run reads.
    _recorder: Arc<Recorder>,
}

/// The results of a first run without capture: its allocations, and the constants that it reads.
#[derive(Debug, Clone)]
pub struct Prepared {
    plan: ScratchPlan,
    recorder: Arc<Recorder>,
}

// SAFETY: CUDA requires that calls on one graph do not overlap, from whichever threads. All of them take the graph by
// `&mut` or by value; each call binds the context to its thread.
unsafe impl Send for Graph {}

/// Whether runs on this device can be captured.
pub fn is_recordable(device: &Device) -> bool {
    device.is_cuda()
}

/// Runs `run` without capture, before [`Graph::record`]. Afterwards everything exists that libraries allocate on their
/// first use, and so do the small constants that operators copy to the GPU, and the allocations of the run are known.
/// It runs on a thread of its own.
///
/// # Errors
/// [`Error::Driver`] where no thread can be started. The errors of `run` are in its result.
pub fn prepare<T: Send>(device: &Device, run: impl FnOnce() -> T + Send) -> Result<(T, Prepared)> {
    let recorder = Arc::new(Recorder::start()?);
    let (result, recorded) = recorder.run(|| trace_allocations(|| with_cached_copies(device, run)));
    Ok((result, Prepared { plan: recorded.plan(), recorder }))
}

/// candle keeps the strides and indices that it copies to the GPU meanwhile, and reuses the copies.
fn with_cached_copies<T>(device: &Device, run: impl FnOnce() -> T) -> T {
    let _kept = device.as_cuda_device().ok().map(|device| device.enable_cuda_graph_htod_cache());
    run()
}

impl Graph {
    /// Captures the work that `run` submits to the GPU, without executing it. The same work, with the same allocations
    /// in the same order, has been run once by [`prepare`]. Tensors from outside must outlive the graph. Tensors that
    /// `run` makes must be dropped at its end. The block is that of one of `others`, graphs of the same device that do not run
    /// meanwhile, where it is large enough.
    ///
    /// # Errors
    /// The error of `run`, [`Error::Pool`] without memory for its tensors, and [`Error::Driver`] where part of it
    /// cannot be captured. The GPU stays usable.
    pub fn record<E: From<Error> + Send>(
        device: &Device,
        prepared: &Prepared,
        others: &[&Self],
        run: impl FnOnce() -> Result<(), E> + Send,
    ) -> Result<Self, E> {
        let shared = others.iter().find_map(|other| other.scratch.share(prepared.plan.clone()));
        prepared.recorder.run(|| Self::record_here(device, prepared, shared, run))
    }

    fn record_here<E: From<Error>>(
        device: &Device,
        prepared: &Prepared,
        shared: Option<Scratch>,
        run: impl FnOnce() -> Result<(), E>,
    ) -> Result<Self, E> {
        let stream = device.as_cuda_device().map_err(Error::from)?.cuda_stream();
        // Relaxed: other threads may use the GPU meanwhile, and libraries may load code.
        let scratch = match shared {
            Some(scratch) => scratch,
            None => Scratch::new(&stream, prepared.plan.clone()).map_err(Error::from)?,
        };
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).map_err(driver)?;
        let (result, problem) = scratch.record(|| with_cached_copies(device, run));
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        // An error of freeing memory during the capture is stored in the context; it must not fail a later call.
        let freed = stream.context().check_err();
        if let Some(problem) = problem {
            return Err(Error::Driver(format!("the run differs from the one that prepared it: {problem}")).into());
        }
        result?;
        freed.map_err(driver)?;
        match graph.map_err(driver)? {
            Some(graph) => Ok(Self { graph: Some(graph), scratch, stream, _recorder: prepared.recorder.clone() }),
            None => Err(Error::Driver("CUDA's driver: the captured graph is empty".into()).into()),
        }
    }

    /// Whether its block is large enough for another run.
    pub fn has_memory_for(&self, other: &Prepared) -> bool {
        self.scratch.share(other.plan.clone()).is_some()
    }

    /// The bytes of its block that the run uses ([`kiln_mempool::Scratch`]).
    pub fn bytes(&self) -> usize {
        self.scratch.bytes()
    }

    /// Runs `run`, with its allocations from the graph's block as far as they fit. All of them must be freed before the
    /// next replay: copy results that are needed longer.
    pub fn with_arena<T>(&self, run: impl FnOnce() -> T) -> T {
        self.scratch.with_arena(run)
    }

    /// Launches the captured work, after the earlier work of the stream.
    ///
    /// # Errors
    /// [`Error::Driver`], without a launch, where memory from [`Graph::with_arena`] is still in use.
    pub fn replay(&mut self) -> Result<()> {
        if !self.scratch.is_idle() {
            return Err(Error::Driver(
                "memory of a recorded step was used by another stage and is not freed yet".into(),
            ));
        }
        match &self.graph {
            Some(graph) => graph.launch().map_err(driver),
            None => Ok(()),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // The block may be freed once the last replay has ended.
        if let Err(error) = self.stream.synchronize() {
            tracing::warn!("freeing a recorded step: {error}");
        }
        self.graph = None;
    }
}
