//! Floating-point operations, by segment.

use std::collections::HashMap;

use kiln_weights::Segments;

/// Floating-point operations of a network, as [`kiln_ops::conv2d_flop`] and its like count them.
///
/// An operator without parameters counts to the segment whose parameters were used last: attention is in the segment of
/// its projections.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FlopCount {
    /// Segments in the order in which they ran. One that ran again later is there again.
    segments: Vec<(String, f64)>,
}

impl FlopCount {
    /// All of them.
    pub fn total(&self) -> f64 {
        self.segments.iter().map(|(_, flop)| flop).sum()
    }

    /// Those of each of a network's segments, in their order: 0 for segments that did not run.
    pub fn by_segment(&self, segments: &Segments) -> Vec<f64> {
        let mut sums = HashMap::<&str, f64>::new();
        for (name, flop) in &self.segments {
            *sums.entry(name).or_default() += flop;
        }
        segments.iter().map(|segment| sums.get(segment.name()).copied().unwrap_or(0.0)).collect()
    }

    /// What follows belongs to this segment.
    pub(super) fn enter(&mut self, segment: &str) {
        if self.segments.last().is_none_or(|(name, _)| name != segment) {
            self.segments.push((segment.to_string(), 0.0));
        }
    }

    /// Adds operations to the current segment.
    pub(super) fn add(&mut self, flop: f64) {
        match self.segments.last_mut() {
            Some((_, sum)) => *sum += flop,
            None => self.segments.push((String::new(), flop)),
        }
    }
}
