//! Floating-point operations, by segment.

use std::collections::HashMap;

use kiln_weights::Segments;

/// Floating-point operations of a network, as counted by [`kiln_ops::conv2d_flop`] and similar functions.
///
/// The operations of an operator without parameters belong to the segment whose parameters were used last: attention
/// belongs to the segment of its projections.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FlopCount {
    /// Segments in running order. A segment that runs again later occurs again.
    segments: Vec<(String, f64)>,
}

impl FlopCount {
    /// The total.
    pub fn total(&self) -> f64 {
        self.segments.iter().map(|(_, flop)| flop).sum()
    }

    /// The operations of each of a network's segments, in their order: 0 for segments that did not run.
    pub fn by_segment(&self, segments: &Segments) -> Vec<f64> {
        let mut sums = HashMap::<&str, f64>::new();
        for (name, flop) in &self.segments {
            *sums.entry(name).or_default() += flop;
        }
        segments.iter().map(|segment| sums.get(segment.name()).copied().unwrap_or(0.0)).collect()
    }

    /// Sets the current segment.
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
