//! The resident segments of a network and the size of the ring for the others. Plans and runs share this rule.

use candle_core::{DType, Device};
use kiln_ops::Target;
use kiln_weights::{Estimate, Placement, Residency, Segment};

use kiln_setup::error::Result;

/// The memory of a streamed network on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamBudget {
    /// Requested bytes of resident segments.
    pub resident: usize,
    /// Maximum bytes of resident segments and the ring together.
    pub room: usize,
}

impl StreamBudget {
    /// The minimum that does not slow streaming down.
    pub const LEAST: Self = Self { resident: 0, room: usize::MAX };
}

/// The resident segments and the ring: the smallest ring that is not slower than larger ones, and in addition
/// `share.resident` bytes; a smaller ring if that does not fit.
///
/// # Errors
/// [`kiln_weights::Error::Budget`] if a ring for the largest segment does not fit.
pub fn residency(
    segments: &[Segment],
    placement: &Placement,
    share: StreamBudget,
    estimate: &Estimate,
) -> Result<Residency> {
    let least = Residency::least(segments, placement, estimate);
    let wanted = least.ring_bytes().saturating_add(share.resident).min(share.room);
    Ok(if wanted == least.device_bytes() { least } else { Residency::plan(segments, placement, wanted, estimate)? })
}

/// The segments whose slabs are on a target's device: a GPU's token tables stay on the host.
pub fn on_device(segments: &[Segment], target: Target) -> Vec<Segment> {
    segments.iter().filter(|segment| !(target.is_gpu() && segment.on_host())).cloned().collect()
}

/// A placement for plans, which need no device.
pub fn planned(dtype: DType) -> Placement {
    Placement::new(Device::Cpu, dtype)
}
