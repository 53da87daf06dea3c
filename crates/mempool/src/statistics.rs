//! What a pool did so far.

/// The counters of a pool, in bytes and in calls since the process began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Requests that were served, growing in place among them.
    pub allocations: u64,
    /// Those of them that needed no memory that the pool did not have already.
    pub reused: u64,
    /// Calls of the system or the driver: for address space, for advice, to give memory back.
    pub system_calls: u64,
    /// Bytes of the blocks in use, rounded up to their classes.
    pub used: usize,
    /// The most that ever were in use at once.
    pub peak_used: usize,
    /// Bytes that the pool keeps: what is in use, and what was and waits for the next request. Address space that
    /// nothing has touched yet is not in it.
    pub reserved: usize,
    /// The most that the pool ever kept.
    pub peak_reserved: usize,
    /// The largest run of waiting bytes.
    pub largest_waiting: usize,
}

impl Statistics {
    /// The part of the requests that needed no new memory, from 0 to 1.
    pub fn reuse_rate(&self) -> f64 {
        ratio(self.reused as f64, self.allocations as f64)
    }

    /// Bytes that wait for a request.
    pub fn waiting(&self) -> usize {
        self.reserved.saturating_sub(self.used)
    }

    /// How scattered the waiting bytes are, from 0 (one run) to nearly 1: the part that the largest request which they
    /// can serve leaves over.
    pub fn fragmentation(&self) -> f64 {
        if self.waiting() == 0 { 0.0 } else { 1.0 - ratio(self.largest_waiting as f64, self.waiting() as f64) }
    }

    /// Whether more than `threshold`, from 0 to 1, of the kept bytes wait: then a trim is worth its price.
    pub fn exceeds(&self, threshold: f64) -> bool {
        self.waiting() as f64 > threshold * self.reserved as f64
    }
}

fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_parts_of_one() {
        let none = Statistics::default();
        assert_eq!((none.reuse_rate(), none.fragmentation(), none.exceeds(0.0)), (0.0, 0.0, false));
        let some = Statistics {
            allocations: 4,
            reused: 3,
            used: 60,
            reserved: 100,
            largest_waiting: 30,
            ..Statistics::default()
        };
        assert_eq!((some.reuse_rate(), some.waiting(), some.fragmentation()), (0.75, 40, 0.25));
        assert!(some.exceeds(0.0) && some.exceeds(0.39) && !some.exceeds(0.4));
    }
}
