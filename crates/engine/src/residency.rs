//! Which of a network's segments stay on the device, and how large the ring for the others is: one rule for plans and
//! for runs.

use candle_core::{DType, Device};
use kiln_ops::Target;
use kiln_weights::{Estimate, Placement, Residency, Segment};

use crate::error::Result;

/// What a streamed network may have on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Share {
    /// Bytes of segments that should stay.
    pub(crate) resident: usize,
    /// The most bytes for them and the ring together.
    pub(crate) room: usize,
}

impl Share {
    /// As little as does not slow streaming down.
    pub(crate) const LEAST: Self = Self { resident: 0, room: usize::MAX };
}

/// The segments that stay, and the ring. The smallest ring that is not slower than larger ones, and beside it
/// `share.resident` bytes; a smaller one where there is no room for that.
///
/// # Errors
/// [`kiln_weights::Error::Budget`] where a ring for the largest segment has no room.
pub(crate) fn residency(
    segments: &[Segment],
    placement: &Placement,
    share: Share,
    estimate: &Estimate,
) -> Result<Residency> {
    let least = Residency::least(segments, placement, estimate);
    let wanted = least.ring_bytes().saturating_add(share.resident).min(share.room);
    Ok(if wanted == least.device_bytes() { least } else { Residency::plan(segments, placement, wanted, estimate)? })
}

/// The segments whose slabs are on a target's device: a card's tables of tokens stay on the host.
pub(crate) fn on_device(segments: &[Segment], target: Target) -> Vec<Segment> {
    segments.iter().filter(|segment| !(target.is_gpu() && segment.on_host())).cloned().collect()
}

/// A placement for plans, which need no device.
pub(crate) fn planned(dtype: DType) -> Placement {
    Placement::new(Device::Cpu, dtype)
}
