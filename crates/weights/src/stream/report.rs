//! What streaming did.

/// Counters of a stream, from its start on. Those of a step are the difference of two ([`StreamReport::since`]).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StreamReport {
    /// Bytes that were copied.
    pub bytes: u64,
    /// Copies.
    pub copies: u64,
    /// Seconds that copies took. On the processor a copy is reading, converting and packing.
    pub copy_seconds: f64,
    /// How often a segment was waited for.
    pub stalls: u64,
    /// Seconds of those waits.
    pub stall_seconds: f64,
    /// How often segments ran in another order than declared, so that copies were started anew.
    pub resets: u64,
}

impl StreamReport {
    /// Seconds of copying that nobody waited for.
    pub fn hidden_seconds(&self) -> f64 {
        (self.copy_seconds - self.stall_seconds).max(0.0)
    }

    /// What was counted after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            bytes: self.bytes - earlier.bytes,
            copies: self.copies - earlier.copies,
            copy_seconds: self.copy_seconds - earlier.copy_seconds,
            stalls: self.stalls - earlier.stalls,
            stall_seconds: self.stall_seconds - earlier.stall_seconds,
            resets: self.resets - earlier.resets,
        }
    }
}
