//! Counters of streaming.

/// Counters of a stream since its start. Those of a step are the difference of two ([`StreamReport::since`]).
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct StreamReport {
    /// Bytes that were copied.
    pub bytes: u64,
    /// The number of copies.
    pub copies: u64,
    /// The total seconds of copies. On the CPU a copy is reading, converting and packing.
    pub copy_seconds: f64,
    /// The number of waits for a segment.
    pub stalls: u64,
    /// The total seconds of those waits.
    pub stall_seconds: f64,
    /// The number of times that segments ran in another order than declared, so that copies restarted.
    pub resets: u64,
}

impl StreamReport {
    /// The seconds of copying that overlapped with computing.
    pub fn hidden_seconds(&self) -> f64 {
        (self.copy_seconds - self.stall_seconds).max(0.0)
    }

    /// The difference to an `earlier` report.
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
