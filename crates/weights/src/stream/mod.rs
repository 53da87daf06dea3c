//! Streaming: segments whose weights are on the device only while they run.
//!
//! Whether a segment stays on the device is a property of the segment, never of the network's code. A network enters a
//! segment ([`crate::SegmentModule::enter`]) and leaves it. For a streamed segment, entering waits for its weights, and
//! leaving allows the next ones to replace them.
//!
//! Streamed segments share a ring of bytes. They are placed in it in running order ([`slot_layout`]). Copies run ahead
//! as far as the ring has room, on into the next pass ([`window`]), so the ring is never larger than planned
//! ([`Residency`]), and it bounds the copies in flight. On a GPU the ring is one allocation. Slabs are packed once into
//! host memory, pinned as far as possible, and a separate stream copies them from there. Events on the GPU order copies
//! and computing, and the host waits for neither. If host memory has no room for all slabs, a thread reads and packs the others
//! from the source in every pass, ahead of their copies. On the CPU a thread reads, converts and packs ahead from the source,
//! which releases its pages ([`ParamSource::release`]): the ring then bounds a process's memory. There the ring only
//! counts bytes, and the slabs are separate tensors.
//!
//! Results have the same bits as with resident weights: the slabs are the same, at another address.

mod gpu;
mod host;
mod report;
mod residency;
mod simulate;
mod slot_layout;
mod window;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_mempool::PinnedPool;
use rayon::ThreadPool;

pub use self::report::StreamReport;
pub use self::residency::{Estimate, Residency};
pub use self::simulate::{CopyTimes, SegmentTimes, SimulatedStep, simulate};

use self::gpu::GpuStream;
use self::host::HostStream;
use crate::error::{Error, Result};
use crate::load::{Placement, check_all, load_open};
use crate::param_spec::SlabType;
use crate::segment::{Segment, Streamed, Streamer};
use crate::source::ParamSource;

/// The options of streaming.
#[derive(Debug, Clone)]
pub struct StreamConfig {
    /// The resident segments, and the ring for the others.
    pub residency: Residency,
    /// Pinned memory for the slabs of a GPU. Without it, or once it is used up, slabs are copied through two small
    /// staging buffers. The CPU needs none.
    pub pinned: Option<PinnedPool>,
    /// The most bytes of slabs that wait in host memory for a GPU. Slabs beyond it are read from the source in every pass.
    pub host_bytes: u64,
    /// Whether a GPU copies on a separate stream, in parallel with computing, or in between.
    pub copy_stream: bool,
    /// The threads that pack slabs for the CPU; `None` means rayon's global pool. Operators wait for slabs, so that they must
    /// not run on the same threads.
    pub pool: Option<Arc<ThreadPool>>,
}

/// Segments of which some are streamed. Dropping it unloads all of them.
pub struct Stream {
    segments: Vec<Segment>,
    streamer: Option<Streaming>,
    time: Duration,
}

enum Streaming {
    Gpu(Arc<GpuStream>),
    Host(Arc<HostStream>),
}

impl Stream {
    /// Loads the resident segments, and starts to stream the others from `source`: all of them run as if they were
    /// loaded. Shapes are checked before memory is allocated, as in [`crate::load`].
    ///
    /// On a GPU every slab that has room in host memory is packed now. The source of the others is read in every pass, as on the
    /// CPU.
    ///
    /// # Errors
    /// Errors of [`crate::load`]; [`Error::OtherPlan`] if the plan is for other segments; [`Error::Ops`] if memory
    /// cannot be allocated. Nothing is loaded then.
    pub fn start(
        segments: &[Segment],
        source: Arc<dyn ParamSource>,
        placement: &Placement,
        config: StreamConfig,
    ) -> Result<Self> {
        let start = Instant::now();
        let StreamConfig { residency, .. } = &config;
        if (residency.len(), residency.types()) != (segments.len(), placement.slab()) {
            let name = |segments, types: SlabType| format!("{segments} segments in {types}");
            return Err(Error::OtherPlan {
                planned: name(residency.len(), residency.types()),
                found: name(segments.len(), placement.slab()),
            });
        }
        check_all(segments, source.as_ref())?;
        let mut this = Self { segments: segments.to_vec(), streamer: None, time: Duration::ZERO };
        let of = |is_resident: bool| {
            let each = segments.iter().enumerate().filter(move |&(i, _)| residency.is_resident(i) == is_resident);
            each.map(|(_, segment)| segment.clone()).collect::<Vec<_>>()
        };
        let streamed = of(false);
        streamed.iter().for_each(Segment::unload);
        let load_resident = || load_open(&of(true), &source, placement).map(drop);
        // On error, `this` unloads all of them.
        config.pool.as_ref().map_or_else(load_resident, |pool| pool.install(load_resident))?;
        if !streamed.is_empty() {
            this.streamer = Some(if placement.device.is_cpu() {
                let (ring, pool) = (residency.ring_bytes(), config.pool.clone());
                Streaming::Host(HostStream::start(streamed.clone(), source, placement, ring, pool)?)
            } else {
                Streaming::Gpu(GpuStream::start(streamed.clone(), &source, placement, &config)?)
            });
        }
        let by: Option<Arc<dyn Streamer>> = match &this.streamer {
            Some(Streaming::Gpu(gpu)) => Some(gpu.clone()),
            Some(Streaming::Host(host)) => Some(host.clone()),
            None => None,
        };
        for (slot, segment) in streamed.iter().enumerate() {
            segment.set_streamed(by.clone().map(|by| Streamed { by, slot }));
        }
        this.time = start.elapsed();
        Ok(this)
    }

    /// Copies and waits so far. On a GPU this waits for the copies that were started.
    ///
    /// # Errors
    /// [`Error::Ops`]: the GPU's work failed.
    pub fn report(&self) -> Result<StreamReport> {
        match &self.streamer {
            Some(Streaming::Gpu(gpu)) => gpu.report(),
            Some(Streaming::Host(host)) => Ok(host.report()),
            None => Ok(StreamReport::default()),
        }
    }

    /// The mean compute seconds of each streamed segment on a GPU since the last call, in running order. `None` on the
    /// CPU, where computing and packing share the cores. The first call returns zeros, and starts the timing. Waits for
    /// the GPU.
    ///
    /// # Errors
    /// [`Error::Ops`]: the GPU's work failed.
    pub fn take_compute_seconds(&self) -> Result<Option<Vec<f64>>> {
        match &self.streamer {
            Some(Streaming::Gpu(gpu)) => gpu.take_compute_seconds().map(Some),
            _ => Ok(None),
        }
    }

    /// Enters and leaves every streamed segment once, in running order, without computing: measures the time of copies
    /// alone.
    ///
    /// # Errors
    /// Errors of a run.
    pub fn pass(&self) -> Result<()> {
        let streamer: &dyn Streamer = match &self.streamer {
            Some(Streaming::Gpu(gpu)) => gpu.as_ref(),
            Some(Streaming::Host(host)) => host.as_ref(),
            None => return Ok(()),
        };
        let streamed = self.segments.iter().filter(|segment| segment.is_streamed()).count();
        (0..streamed).try_for_each(|slot| streamer.enter(slot).map(|()| streamer.leave(slot)))
    }

    /// The time that [`Stream::start`] took.
    pub fn start_time(&self) -> Duration {
        self.time
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.segments.iter().for_each(Segment::unload);
        if let Some(Streaming::Host(host)) = &self.streamer {
            host.stop();
        }
    }
}
