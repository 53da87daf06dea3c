//! Replaces `interpose.rs` in builds without the feature `interpose`: allocations of candle go straight to the driver.

/// Whether this build replaces the driver's functions.
pub(super) const ENABLED: bool = false;

/// Allocations on managed streams so far: none is counted.
pub(super) fn requests() -> u64 {
    0
}
