//! Graphs through CUDA's stream capture.
#![allow(unsafe_code)]

use candle_core::Device;
use candle_core::cuda::cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstreamCaptureMode};
use candle_core::cuda::cudarc::driver::{CudaGraph, CudaStream};
use std::sync::Arc;

use crate::cuda::driver;
use crate::error::{Error, Result};

/// A recorded run.
pub struct Graph {
    graph: Option<CudaGraph>,
    stream: Arc<CudaStream>,
}

// SAFETY: CUDA asks that calls on one graph do not overlap, from whichever threads they come. All of them need the
// graph by `&mut` or by value; the context is bound to the calling thread by each call.
unsafe impl Send for Graph {}

/// Whether runs on this device can be recorded.
pub fn is_recordable(device: &Device) -> bool {
    device.is_cuda()
}

/// Does `run` as it will be recorded later: whatever libraries make on their first use, and what small constants they
/// copy to the card, is there afterwards.
pub fn prepare<T>(device: &Device, run: impl FnOnce() -> T) -> T {
    // candle keeps the strides and indices that it copies to a card while this lives, and uses the copies again.
    let _kept = device.as_cuda_device().ok().map(|device| device.enable_cuda_graph_htod_cache());
    run()
}

impl Graph {
    /// Records the work that `run` gives to the card; nothing of it is done yet. The same work was done once by
    /// [`prepare`]. Tensors that were made before must outlive the graph; what `run` makes must be gone at its end.
    ///
    /// # Errors
    /// What `run` reports, and [`Error::Driver`] where something in it cannot be recorded. The card works on as before.
    pub fn record<E: From<Error>>(device: &Device, run: impl FnOnce() -> Result<(), E>) -> Result<Self, E> {
        let stream = device.as_cuda_device().map_err(Error::from)?.cuda_stream();
        // Relaxed: other threads may use the card meanwhile, and libraries may load code.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        stream.begin_capture(mode).map_err(driver)?;
        let result = prepare(device, run);
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        // Memory that could not be freed while recording is reported at the next call; it must not fail that.
        let freed = stream.context().check_err();
        result?;
        freed.map_err(driver)?;
        match graph.map_err(driver)? {
            Some(graph) => Ok(Self { graph: Some(graph), stream }),
            None => Err(Error::Driver("CUDA's driver: the recording is empty".into()).into()),
        }
    }

    /// Starts the recorded work, after what the card was given before.
    ///
    /// # Errors
    /// [`Error::Driver`].
    pub fn replay(&mut self) -> Result<()> {
        match &self.graph {
            Some(graph) => graph.launch().map_err(driver),
            None => Ok(()),
        }
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // The graph's memory goes back to the card once the last run has ended.
        let ended = self.stream.synchronize();
        self.graph = None;
        // SAFETY: the call takes a device's number and frees what no graph uses.
        let trimmed = unsafe { sys::cuDeviceGraphMemTrim(self.stream.context().cu_device()) }.result();
        if let Err(error) = ended.and(trimmed) {
            tracing::warn!("freeing a recorded step: {error}");
        }
    }
}
