//! Streaming: segments whose weights are on the device only while they run.
//!
//! Whether a segment stays on the device is a property of the segment, never of the network's code: a network enters a
//! segment ([`crate::Staged::enter`]) and leaves it, and where the segment is streamed that is when its weights are
//! waited for, and when the next ones may take their place.
//!
//! Streamed segments share a ring of bytes. They lie in it in running order ([`places`]), copies run ahead as far as it
//! has room, on into the next pass ([`window`]), so it is never larger than it was planned ([`Residency`]), and what is
//! in flight is bounded by it. On a card the ring is one allocation, and slabs are packed once into host memory,
//! page-locked as far as that may be, from which a stream of its own copies them; the card orders copies and computing,
//! and the host waits for neither. On the processor a thread reads, converts and packs ahead from the source, which
//! releases its pages ([`ParamSource::release`]): that bounds a process's memory by the ring. There the ring counts
//! bytes, and the slabs in it are tensors of their own.
//!
//! Results have the same bits as with resident weights: the same slabs, at another address.

mod card;
mod host;
mod places;
mod report;
mod residency;
mod simulate;
mod window;

use std::sync::Arc;
use std::time::{Duration, Instant};

use kiln_mempool::PinnedPool;

pub use self::report::StreamReport;
pub use self::residency::{Estimate, Residency};
pub use self::simulate::{SegmentTimes, SimulatedStep, simulate};

use self::card::CardStream;
use self::host::HostStream;
use crate::error::{Error, Result};
use crate::load::{Placement, check_all, load};
use crate::param_spec::SlabType;
use crate::segment::{Segment, Streamed, Streamer};
use crate::source::ParamSource;

/// How segments are streamed.
#[derive(Debug, Clone)]
pub struct StreamConfig {
    /// Which stay, and the ring for the others.
    pub residency: Residency,
    /// Page-locked memory for the slabs of a card; where it is none or used up, slabs go through two small staging
    /// buffers. The processor needs none.
    pub pinned: Option<PinnedPool>,
    /// Whether a card copies on a stream of its own, beside the computing, or between it.
    pub copy_stream: bool,
}

/// Segments of which some are streamed. Dropping it unloads all of them.
pub struct Stream {
    segments: Vec<Segment>,
    streamer: Option<Streaming>,
    time: Duration,
}

enum Streaming {
    Card(Arc<CardStream>),
    Host(Arc<HostStream>),
}

impl Stream {
    /// Loads the segments that stay, and starts to stream the others from `source`: all of them run as if they were
    /// loaded. Shapes are checked before anything is allocated, as by [`crate::load`].
    ///
    /// On a card every slab is packed now, and `source` is not needed any more; on the processor it is read in every
    /// pass.
    ///
    /// # Errors
    /// Those of [`crate::load`]; [`Error::OtherPlan`] where the plan is for other segments; [`Error::Ops`] where memory
    /// cannot be had. Nothing is loaded then.
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
        load(&of(true), source.as_ref(), placement)?; // where it fails, `this` unloads all of them
        if !streamed.is_empty() {
            this.streamer = Some(if placement.device.is_cpu() {
                Streaming::Host(HostStream::start(streamed.clone(), source, placement.slab(), residency.ring_bytes())?)
            } else {
                Streaming::Card(CardStream::start(streamed.clone(), source.as_ref(), placement, &config)?)
            });
        }
        let by: Option<Arc<dyn Streamer>> = match &this.streamer {
            Some(Streaming::Card(card)) => Some(card.clone()),
            Some(Streaming::Host(host)) => Some(host.clone()),
            None => None,
        };
        for (slot, segment) in streamed.iter().enumerate() {
            segment.set_streamed(by.clone().map(|by| Streamed { by, slot }));
        }
        this.time = start.elapsed();
        Ok(this)
    }

    /// What was copied and waited for so far. On a card this waits for the copies that have begun.
    ///
    /// # Errors
    /// [`Error::Ops`]: the card's work failed.
    pub fn report(&self) -> Result<StreamReport> {
        match &self.streamer {
            Some(Streaming::Card(card)) => card.report(),
            Some(Streaming::Host(host)) => Ok(host.report()),
            None => Ok(StreamReport::default()),
        }
    }

    /// The mean of the seconds that each streamed segment computed on a card since this was asked before, in running order;
    /// `None` on the processor, where computing and packing share the cores. The first call gives zeros: segments are timed
    /// from then on. Waits for the card.
    ///
    /// # Errors
    /// [`Error::Ops`]: the card's work failed.
    pub fn take_compute_seconds(&self) -> Result<Option<Vec<f64>>> {
        match &self.streamer {
            Some(Streaming::Card(card)) => card.take_compute_seconds().map(Some),
            _ => Ok(None),
        }
    }

    /// Enters and leaves every streamed segment once, in running order, without computing: what copies alone take, for
    /// measurements.
    ///
    /// # Errors
    /// Those of a run.
    pub fn pass(&self) -> Result<()> {
        let streamer: &dyn Streamer = match &self.streamer {
            Some(Streaming::Card(card)) => card.as_ref(),
            Some(Streaming::Host(host)) => host.as_ref(),
            None => return Ok(()),
        };
        let streamed = self.segments.iter().filter(|segment| segment.is_streamed()).count();
        (0..streamed).try_for_each(|slot| streamer.enter(slot).map(|()| streamer.leave(slot)))
    }

    /// How long [`Stream::start`] took.
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
