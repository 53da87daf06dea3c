//! The choice of resident segments, and the size of the ring for the others.

use super::simulate::{CopyTimes, SegmentTimes, SimulatedStep, simulate};
use crate::error::{Error, Result};
use crate::load::Placement;
use crate::param_spec::{ALIGNMENT, SlabType};
use crate::segment::Segment;

/// Estimated times of a step.
#[derive(Debug, Clone, PartialEq)]
pub struct Estimate {
    /// Compute seconds of each segment, in running order. Missing values count as 0.
    pub seconds: Vec<f64>,
    /// The times of copies.
    pub copies: CopyTimes,
}

/// The resident segments of a network. The others share a ring.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residency {
    /// The size of every segment in bytes; 0 for one that stays on the host.
    sizes: Vec<usize>,
    resident: Vec<bool>,
    ring: usize,
    /// The most bytes of a copy to a GPU.
    piece: usize,
    types: SlabType,
}

/// The part of a ring that is copied to a GPU at once, in bytes: a copy starts as soon as that much is free. Smaller pieces
/// would cost more than they hide, since each copy takes some microseconds besides its bytes.
fn piece_of(ring: usize) -> usize {
    aligned(ring / 12).max(1 << 20)
}

/// Ring sizes to try, in quarters of the largest streamed segment. Beyond that, memory is more useful for resident
/// segments.
const RINGS: std::ops::RangeInclusive<usize> = 4..=16;
/// The range if no segment is resident, for the least memory.
const LEAST_RINGS: std::ops::RangeInclusive<usize> = 4..=12;
/// Sizes of the largest streamed segment to try, in quarters of the largest segment: a few large resident segments
/// allow a smaller ring.
const LIMITS: [usize; 3] = [4, 3, 2];
/// How resident segments are spread, from evenly over the bytes (0) to evenly over the time of computing (1).
const BY_TIME: [f64; 3] = [0.0, 0.5, 1.0];
/// The maximum ratio of step times for which a larger ring is preferred over a smaller one.
const WORTH: f64 = 0.998;
/// The maximum ratio of the step time with a small ring to the best time, on the CPU.
const NEAR: f64 = 1.1;
/// The part of the shorter of copying and computing that the smallest ring hides.
const HIDDEN: f64 = 0.92;

impl Residency {
    /// All segments are resident.
    pub fn all(segments: &[Segment], placement: &Placement) -> Self {
        let sizes = sizes(segments, placement);
        Self { resident: vec![true; sizes.len()], sizes, ring: 0, piece: usize::MAX, types: placement.slab() }
    }

    /// All segments go through a ring of `ring` bytes, except those that stay on the host.
    ///
    /// # Errors
    /// [`Error::Budget`] if the ring is smaller than the largest segment.
    pub fn none(segments: &[Segment], placement: &Placement, ring: usize) -> Result<Self> {
        Self::chosen(segments, placement, ring, |_| false)
    }

    /// The segments for which `stays` returns true are resident. The others go through a ring of `ring` bytes.
    ///
    /// # Errors
    /// [`Error::Budget`] if the ring is smaller than the largest of those.
    pub fn chosen(
        segments: &[Segment],
        placement: &Placement,
        ring: usize,
        stays: impl Fn(usize) -> bool,
    ) -> Result<Self> {
        let sizes = sizes(segments, placement);
        let resident: Vec<bool> = sizes.iter().enumerate().map(|(i, &size)| size == 0 || stays(i)).collect();
        let largest = largest_streamed(&sizes, &resident);
        if largest > ring {
            return Err(Error::Budget { needed: largest, given: ring });
        }
        let ring = if largest == 0 { 0 } else { aligned(ring) };
        Ok(Self { sizes, resident, ring, piece: piece_of(ring), types: placement.slab() })
    }

    /// Sets copies to a GPU in pieces of at most about `bytes`, instead of those that suit the ring.
    pub fn with_pieces(self, bytes: usize) -> Self {
        Self { piece: bytes, ..self }
    }

    /// The least memory on the device for streaming all segments. For a GPU the smallest ring with which nearly all of the
    /// shorter of copying and computing overlaps in a simulated step, or else the fastest. For the CPU, which packs with the cores
    /// that compute, the smallest ring that slows steps down by at most a tenth.
    pub fn least(segments: &[Segment], placement: &Placement, estimate: &Estimate) -> Self {
        let all = Self::all(segments, placement);
        let largest = all.sizes.iter().copied().max().unwrap_or(0);
        let resident: Vec<bool> = all.sizes.iter().map(|&size| size == 0).collect();
        let mut rings: Vec<(f64, Self)> = Vec::new();
        for quarters in LEAST_RINGS.filter(|_| largest > 0) {
            let (step, ring) = all.with_ring(&resident, aligned(largest * quarters / 4), estimate);
            if estimate.copies.by_engine && step.overlap() >= HIDDEN {
                return ring;
            }
            rings.push((step.seconds, ring));
        }
        let near = if estimate.copies.by_engine { 1.0 / WORTH } else { NEAR };
        let best = rings.iter().map(|(seconds, _)| *seconds).fold(f64::INFINITY, f64::min);
        rings.into_iter().find(|(seconds, _)| *seconds <= best * near).map_or(all, |(_, ring)| ring)
    }

    /// The best use of `device_bytes` bytes for slabs and ring, by simulated steps. All segments are resident if they
    /// fit. Otherwise the ring is as small as possible without slowing steps down, and resident segments use the
    /// remaining memory, spread over the running order so that copies are evenly distributed.
    ///
    /// # Errors
    /// [`Error::Budget`] if not even a ring for the largest segment fits.
    pub fn plan(segments: &[Segment], placement: &Placement, device_bytes: usize, estimate: &Estimate) -> Result<Self> {
        let all = Self::all(segments, placement);
        if all.device_bytes() <= device_bytes {
            return Ok(all);
        }
        let largest = all.sizes.iter().copied().max().unwrap_or(0);
        if largest > device_bytes {
            return Err(Error::Budget { needed: largest, given: device_bytes });
        }
        let mut best: Option<(f64, Self)> = None;
        for (limit, quarters) in LIMITS.into_iter().flat_map(|limit| RINGS.map(move |quarters| (limit, quarters))) {
            let limit = largest * limit / 4;
            let ring = aligned(limit * quarters / 4).min(device_bytes);
            for by_time in BY_TIME {
                let shares = shares(&all.sizes, &estimate.seconds, by_time);
                let Some(resident) = spread(&all.sizes, &shares, device_bytes - ring, limit) else { continue };
                if largest_streamed(&all.sizes, &resident) > ring {
                    continue;
                }
                let (step, candidate) = all.with_ring(&resident, ring, estimate);
                if best.as_ref().is_none_or(|(least, _)| step.seconds < *least * WORTH) {
                    best = Some((step.seconds, candidate));
                }
            }
        }
        match best {
            Some((_, residency)) => Ok(residency),
            None => Self::none(segments, placement, device_bytes),
        }
    }

    /// These resident segments and a ring of `ring` bytes for the others, with its simulated step.
    fn with_ring(&self, resident: &[bool], ring: usize, estimate: &Estimate) -> (SimulatedStep, Self) {
        let piece = if estimate.copies.by_engine { piece_of(ring) } else { usize::MAX };
        let this = Self { resident: resident.to_vec(), ring, piece, ..self.clone() };
        (this.simulate(estimate), this)
    }

    /// Simulates a step with these segments resident.
    pub fn simulate(&self, estimate: &Estimate) -> SimulatedStep {
        let times = (0..self.sizes.len()).map(|i| SegmentTimes {
            bytes: if self.resident[i] { 0 } else { self.sizes[i] },
            seconds: estimate.seconds.get(i).copied().unwrap_or(0.0),
        });
        simulate(&times.collect::<Vec<_>>(), self.ring, self.piece, &estimate.copies)
    }

    /// Whether segment `i` is resident.
    pub fn is_resident(&self, i: usize) -> bool {
        self.resident.get(i).copied().unwrap_or(true)
    }

    /// The most bytes of a copy to a GPU, about; the CPU packs whole segments.
    pub(crate) fn piece_bytes(&self) -> usize {
        self.piece
    }

    /// The size of the ring in bytes; 0 if all segments are resident.
    pub fn ring_bytes(&self) -> usize {
        self.ring
    }

    /// Bytes that are copied in every step.
    pub fn streamed_bytes(&self) -> usize {
        self.sum(false)
    }

    /// The size of resident slabs in bytes.
    pub fn resident_bytes(&self) -> usize {
        self.sum(true)
    }

    /// Bytes on the device: resident slabs and the ring.
    pub fn device_bytes(&self) -> usize {
        self.resident_bytes() + self.ring
    }

    /// The slab types of this plan.
    pub(crate) fn types(&self) -> SlabType {
        self.types
    }

    /// The number of segments of this plan.
    pub(crate) fn len(&self) -> usize {
        self.sizes.len()
    }

    fn sum(&self, resident: bool) -> usize {
        self.sizes.iter().zip(&self.resident).filter(|(_, is)| **is == resident).map(|(size, _)| size).sum()
    }
}

/// The size of every segment on the device in bytes.
fn sizes(segments: &[Segment], placement: &Placement) -> Vec<usize> {
    let on_gpu = !placement.device.is_cpu() || placement.backend.is_some();
    let size = |segment: &Segment| if on_gpu && segment.on_host() { 0 } else { segment.bytes(placement.slab()) };
    segments.iter().map(size).collect()
}

fn largest_streamed(sizes: &[usize], resident: &[bool]) -> usize {
    sizes.iter().zip(resident).filter(|(_, resident)| !**resident).map(|(size, _)| *size).max().unwrap_or(0)
}

/// Aligns the size of a ring to that of slabs.
fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGNMENT)
}

/// The share of each segment in what is streamed: of all bytes and of all computing, weighted by `by_time` (0 to 1).
fn shares(sizes: &[usize], seconds: &[f64], by_time: f64) -> Vec<f64> {
    let bytes = sizes.iter().sum::<usize>().max(1) as f64;
    let time = seconds.iter().sum::<f64>();
    let of = |i: usize, size: usize| {
        let computing = if time > 0.0 { seconds.get(i).copied().unwrap_or(0.0) / time } else { size as f64 / bytes };
        (1.0 - by_time) * size as f64 / bytes + by_time * computing
    };
    sizes.iter().enumerate().map(|(i, &size)| of(i, size)).collect()
}

/// Chooses resident segments of at most `room` bytes in total: all above `limit` bytes; of the others as many that the streamed
/// ones have their `shares` along the running order; then the largest that still fit. `None` if those above `limit` do not fit.
fn spread(sizes: &[usize], shares: &[f64], room: usize, limit: usize) -> Option<Vec<bool>> {
    let mut resident: Vec<bool> = sizes.iter().map(|&size| size == 0 || size > limit).collect();
    let sum = |wanted: bool, resident: &[bool]| -> usize {
        sizes.iter().zip(resident).filter(|(_, is)| **is == wanted).map(|(size, _)| size).sum()
    };
    let mut room = room.checked_sub(sum(true, &resident))?;
    let others = sum(false, &resident);
    let streamed = others.saturating_sub(room) as f64;
    let total: f64 = shares.iter().zip(&resident).filter(|(_, is)| !**is).map(|(share, _)| share).sum();
    // Bytes that should have been streamed so far, less those that are.
    let mut due = 0.0;
    for ((resident, &size), share) in
        resident.iter_mut().zip(sizes).zip(shares).filter(|((resident, _), _)| !**resident)
    {
        due += streamed * share / total.max(f64::MIN_POSITIVE);
        if due < size as f64 / 2.0 && size <= room {
            *resident = true;
            room -= size;
        } else {
            due -= size as f64;
        }
    }
    let mut rest: Vec<usize> = (0..sizes.len()).filter(|&i| !resident[i]).collect();
    rest.sort_by_key(|&i| std::cmp::Reverse(sizes[i]));
    for i in rest {
        if sizes[i] <= room {
            resident[i] = true;
            room -= sizes[i];
        }
    }
    Some(resident)
}
