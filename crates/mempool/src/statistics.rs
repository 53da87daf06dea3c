//! Statistics of a pool.

/// Statistics of a pool, in bytes and in calls since the process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests that were served, including growth in place.
    pub allocations: u64,
    /// The requests that needed no new memory.
    pub reused: u64,
    /// Calls of the system or the driver for memory.
    pub system_calls: u64,
    /// Bytes of the blocks in use, rounded up to their size classes.
    pub used: usize,
    /// The peak of `used`.
    pub peak_used: usize,
    /// Bytes that the pool keeps: in use, or unused for the next request. Untouched address space does not count.
    pub reserved: usize,
    /// The peak of `reserved`.
    pub peak_reserved: usize,
    /// The size of the largest unused block.
    pub largest_unused: usize,
}

impl Statistics {
    /// The fraction of the requests that needed no new memory, from 0 to 1.
    pub fn reuse_rate(&self) -> f64 {
        ratio(self.reused as f64, self.allocations as f64)
    }

    /// Unused bytes.
    pub fn unused(&self) -> usize {
        self.reserved.saturating_sub(self.used)
    }

    /// The fragmentation of the unused memory, from 0 (one block) to nearly 1: the fraction that is outside of its
    /// largest block.
    pub fn fragmentation(&self) -> f64 {
        if self.unused() == 0 { 0.0 } else { 1.0 - ratio(self.largest_unused as f64, self.unused() as f64) }
    }

    /// Whether more than `threshold`, from 0 to 1, of the reserved bytes are unused: then a trim is worth its cost.
    pub fn exceeds(&self, threshold: f64) -> bool {
        self.unused() as f64 > threshold * self.reserved as f64
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_fractions() {
        let none = Statistics::default();
        assert_eq!((none.reuse_rate(), none.fragmentation(), none.exceeds(0.0)), (0.0, 0.0, false));
        let some = Statistics {
            allocations: 4,
            reused: 3,
            used: 60,
            reserved: 100,
            largest_unused: 30,
            ..Statistics::default()
        };
        assert_eq!((some.reuse_rate(), some.unused(), some.fragmentation()), (0.75, 40, 0.25));
        assert!(some.exceeds(0.0) && some.exceeds(0.39) && !some.exceeds(0.4));
    }
}
