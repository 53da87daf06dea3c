//! Streaming of weights in a measurement, and a comparison with the best possible overlap.

use std::sync::Arc;

use candle_core::Device;
use kiln_engine::ExecutionTarget;
use kiln_engine::host_bytes;
use kiln_engine::pipeline::pinned_pool;
use kiln_weights::{
    CopyTimes, Estimate, ParamSource, Placement, RandomSource, Residency, SafetensorsFile, Segments, SimulatedStep,
    Stream, StreamConfig, StreamReport,
};
use serde::Serialize;
use tempfile::NamedTempFile;

use super::stage::SEED;
use crate::error::Result;

/// Options of streaming in a measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StreamPlan {
    /// Bytes of resident weights on the device, for every network.
    pub resident: usize,
    /// Bytes of the ring for the other weights; `None` is the minimum that does not slow steps down.
    pub ring: Option<usize>,
}

/// Measured and best possible values of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct StreamStage {
    /// Bytes of resident slabs.
    pub resident_bytes: usize,
    /// Bytes of the ring.
    pub ring_bytes: usize,
    /// Bytes that are copied in a run.
    pub streamed_bytes: usize,
    /// Mean seconds of copying in a run.
    pub copy_seconds: f64,
    /// Mean seconds in a run in which computing waited for copies.
    pub stall_seconds: f64,
    /// The mean number of waits.
    pub stalls: f64,
    /// The total number of restarts because segments ran in another order.
    pub resets: u64,
    /// Seconds of a pass that only copies.
    pub copy_only_seconds: f64,
    /// Seconds of a run with all weights resident, launched operator by operator like a streamed one.
    pub compute_only_seconds: f64,
    /// Seconds of computing in a streamed run. On a GPU this is the time from the arrival of each segment's weights to
    /// the end of its last kernel: the host launches ahead while copies are pending, so that it may be less than
    /// [`Self::compute_only_seconds`]. For resident segments, and on the CPU for all, it is their share of that time by
    /// operations.
    pub compute_seconds: f64,
    /// Seconds of a run in simulated time, with the times of copies and computing above.
    pub simulated_seconds: f64,
    /// The fraction of hidden copy time, relative to the simulation. It has little meaning on the CPU, where packing
    /// uses the same cores as computing.
    pub overlap: f64,
}

/// The streamed weights of one network. The file exists as long as the stream reads it.
pub(super) struct Streamed {
    stream: Stream,
    residency: Residency,
    _file: Option<NamedTempFile>,
}

impl Streamed {
    /// Streams random weights: to a GPU from host memory, which is pinned up to half of the free memory, to the CPU
    /// from a file. `flop` are the operations of each segment in a run, if known.
    pub(super) fn start(
        plan: StreamPlan,
        segments: &Segments,
        placement: &Placement,
        on: ExecutionTarget,
        flop: &[f64],
    ) -> Result<Self> {
        let estimate = on.rates.estimate(flop); // as in a run
        let mut residency = match plan.ring {
            Some(ring) => Residency::none(segments, placement, ring)?,
            None => Residency::least(segments, placement, &estimate),
        };
        if plan.resident > 0 {
            let bytes = plan.resident + residency.ring_bytes();
            residency = Residency::plan(segments, placement, bytes, &estimate)?;
        }
        let random = RandomSource::new(segments, SEED);
        let (source, file): (Arc<dyn ParamSource>, _) = match placement.device {
            Device::Cpu => {
                let folder = std::env::temp_dir();
                let file = NamedTempFile::new_in(&folder).map_err(kiln_files::write_error(&folder))?;
                random.save(file.path())?;
                (Arc::new(SafetensorsFile::open(file.path())?), Some(file))
            }
            _ => (Arc::new(random), None),
        };
        let pins = on.link.is_none_or(|link| link.pinning_pays());
        let pinned = pinned_pool(&placement.device)?.filter(|_| pins);
        let host_bytes = host_bytes();
        let config = StreamConfig { residency: residency.clone(), pinned, host_bytes, copy_stream: true, pool: None };
        Ok(Self { stream: Stream::start(segments, source, placement, config)?, residency, _file: file })
    }

    pub(super) fn report(&self) -> Result<StreamReport> {
        Ok(self.stream.report()?)
    }

    /// Seconds of GPU computing in each streamed segment since the previous call.
    pub(super) fn take_compute_seconds(&self) -> Result<Option<Vec<f64>>> {
        Ok(self.stream.take_compute_seconds()?)
    }

    /// A pass that only copies.
    pub(super) fn pass(&self) -> Result<()> {
        Ok(self.stream.pass()?)
    }

    /// The values of the measured runs and of a simulated run: `counted` is the total of `runs` runs, and the seconds
    /// are of runs that alternate with copy-only and compute-only runs.
    pub(super) fn stage(
        residency: &Residency,
        counted: StreamReport,
        runs: usize,
        [seconds, copy_only, compute_only]: [f64; 3],
        flop: &[f64],
        measured: Option<Vec<f64>>,
    ) -> StreamStage {
        let total: f64 = flop.iter().sum();
        let mut of_segments: Vec<f64> =
            flop.iter().map(|flop| compute_only * flop / total.max(f64::MIN_POSITIVE)).collect();
        let streams = of_segments.iter_mut().enumerate().filter(|(i, _)| !residency.is_resident(*i));
        streams.zip(measured.unwrap_or_default()).for_each(|((_, seconds), measured)| *seconds = measured);
        let compute: f64 = of_segments.iter().sum();
        let streamed = residency.streamed_bytes() as f64;
        // The rate includes what each copy and wait takes.
        let estimate = Estimate { seconds: of_segments, copies: CopyTimes::at(streamed / copy_only) };
        let SimulatedStep { seconds: simulated, .. } = residency.simulate(&estimate);
        let hidden = |seconds: f64| (copy_only + compute - seconds).max(0.0);
        let each = |value: f64| value / runs.max(1) as f64;
        StreamStage {
            resident_bytes: residency.resident_bytes(),
            ring_bytes: residency.ring_bytes(),
            streamed_bytes: residency.streamed_bytes(),
            copy_seconds: each(counted.copy_seconds),
            stall_seconds: each(counted.stall_seconds),
            stalls: each(counted.stalls as f64),
            resets: counted.resets,
            copy_only_seconds: copy_only,
            compute_only_seconds: compute_only,
            compute_seconds: compute,
            simulated_seconds: simulated,
            overlap: hidden(seconds) / hidden(simulated).max(f64::MIN_POSITIVE),
        }
    }

    pub(super) fn residency(&self) -> &Residency {
        &self.residency
    }
}
