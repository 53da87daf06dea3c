//! The memory of one network's weights, resident or streamed.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use candle_core::DType;
use kiln_mempool::Rounding;
use kiln_weights::{Estimate, Placement, Segment, Segments};

use crate::execution_target::ExecutionTarget;
use crate::residency::{StreamBudget, on_device, planned, residency};

/// The device memory of a network's weights.
pub struct Weights {
    segments: Vec<Segment>,
    /// Cached results of [`Self::streamed`]: it is called for the same values several times, and simulates many steps.
    streamed: Mutex<HashMap<(usize, usize), Streamed>>,
    placement: Placement,
    estimate: Estimate,
    rounding: Rounding,
}

/// The part on the device during streaming.
#[derive(Clone, Copy, Default)]
pub struct Streamed {
    /// Bytes of resident segments.
    pub resident: usize,
    /// Bytes of the ring.
    pub ring: usize,
    /// Bytes that a run copies.
    pub copied: usize,
    /// Simulated seconds of a run, with copies.
    pub seconds: f64,
}

impl Streamed {
    /// Resident segments and the ring.
    pub fn on_device(&self) -> usize {
        self.resident + self.ring
    }

    /// Both at the same time.
    pub fn plus(self, other: Self) -> Self {
        Self {
            resident: self.resident + other.resident,
            ring: self.ring + other.ring,
            copied: self.copied + other.copied,
            seconds: self.seconds + other.seconds,
        }
    }
}

impl Weights {
    /// `flop` are the operations of each segment in a run, if known.
    pub fn of(segments: &Segments, dtype: DType, on: ExecutionTarget, flop: &[f64]) -> Self {
        Self {
            segments: on_device(segments, on.target),
            streamed: Mutex::default(),
            placement: planned(dtype).with_matrices(on.matrices),
            estimate: on.rates.estimate(flop),
            rounding: if on.target.is_gpu() { Rounding::Gpu } else { Rounding::HostPool },
        }
    }

    /// The sum.
    pub fn all(&self) -> usize {
        self.segments.iter().map(|segment| self.rounding.of(segment.bytes(self.placement.slab()))).sum()
    }

    /// The residency of [`residency`]; if that does not fit, the minimum for streaming.
    pub fn streamed(&self, share: StreamBudget) -> Streamed {
        let key = (share.resident, share.room);
        let mut known = self.streamed.lock().unwrap_or_else(PoisonError::into_inner);
        *known.entry(key).or_insert_with(|| self.find_streamed(share))
    }

    fn find_streamed(&self, share: StreamBudget) -> Streamed {
        let of = |share| residency(&self.segments, &self.placement, share, &self.estimate);
        let Ok(residency) = of(share).or_else(|_| of(StreamBudget { resident: 0, room: self.largest() })) else {
            return Streamed::default(); // a network without weights
        };
        Streamed {
            resident: residency.resident_bytes(),
            ring: self.rounding.of(residency.ring_bytes()),
            copied: residency.streamed_bytes(),
            seconds: residency.simulate(&self.estimate).seconds,
        }
    }

    fn largest(&self) -> usize {
        self.segments.iter().map(|segment| segment.bytes(self.placement.slab())).max().unwrap_or(0)
    }
}
