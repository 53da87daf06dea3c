//! What a ring can do: steps of a network whose segments are streamed, in simulated time.
//!
//! One engine copies, one computes, as on a card. The places and the rules of which copy starts when are those of the
//! real ring ([`super::window`]), so a simulated step is the best that the ring could do with these times.

use super::places::Places;
use super::window::{Entry, Window};

/// A segment, as far as time goes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SegmentTimes {
    /// Bytes that are copied in every step; 0 for one that is resident.
    pub bytes: usize,
    /// Seconds that it computes.
    pub seconds: f64,
}

/// A simulated step, once the ring is in its stride.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SimulatedStep {
    /// From its start to its end.
    pub seconds: f64,
    /// Seconds of copying.
    pub copy_seconds: f64,
    /// Seconds that computing waited for copies.
    pub stall_seconds: f64,
}

impl SimulatedStep {
    /// Seconds of copying that computing did not wait for.
    pub fn hidden_seconds(&self) -> f64 {
        (self.copy_seconds - self.stall_seconds).max(0.0)
    }
}

/// Steps until the ring is in its stride: what is in it at a step's start depends on the step before.
const PASSES: usize = 4;

/// Simulates steps of `segments` through a ring of `ring` bytes that is filled with `bytes_per_second`, and gives the
/// last. A ring that does not hold the largest streamed segment is taken as large as that.
pub fn simulate(segments: &[SegmentTimes], ring: usize, bytes_per_second: f64) -> SimulatedStep {
    let sizes: Vec<usize> = segments.iter().map(|segment| segment.bytes).filter(|&bytes| bytes > 0).collect();
    let ring = ring.max(sizes.iter().copied().max().unwrap_or(0));
    let mut window = Window::new(Places::new(&sizes, ring));
    let mut copied = vec![0.0; sizes.len()]; // when the last copy of a segment ended
    let mut left = vec![0.0; sizes.len()]; // when its last use ended
    let (mut copying, mut computing) = (0.0f64, 0.0f64); // when either engine is free
    let mut step = SimulatedStep::default();
    for _ in 0..PASSES {
        let begin = computing;
        step = SimulatedStep::default();
        let mut slot = 0;
        for segment in segments {
            if segment.bytes == 0 {
                computing += segment.seconds;
                continue;
            }
            // In the order of the host's calls: what a segment leaves is filled before the next is entered.
            loop {
                while let Some(start) = window.next() {
                    let free = start.evicted.iter().fold(copying, |free: f64, &evicted| free.max(left[evicted]));
                    let seconds = sizes[start.slot] as f64 / bytes_per_second;
                    copying = free + seconds;
                    copied[start.slot] = copying;
                    step.copy_seconds += seconds;
                }
                if window.enter(slot) == Entry::Ready {
                    break;
                }
            }
            step.stall_seconds += (copied[slot] - computing).max(0.0);
            computing = computing.max(copied[slot]) + segment.seconds;
            left[slot] = computing;
            window.leave(slot);
            slot += 1;
        }
        step.seconds = computing - begin;
    }
    step
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn segments(bytes: &[usize], seconds: f64) -> Vec<SegmentTimes> {
        bytes.iter().map(|&bytes| SegmentTimes { bytes, seconds }).collect()
    }

    #[test]
    fn copies_hide_behind_longer_computing_and_computing_behind_longer_copies() {
        let even = [10 * MIB; 15]; // five times round a ring of three: the last and the first do not meet
        let rate = 1e3 * MIB as f64; // 10 ms a segment
        let step = |seconds, ring| simulate(&segments(&even, seconds), ring, rate);
        let hidden = step(20e-3, 30 * MIB);
        assert!((hidden.seconds - 300e-3).abs() < 1e-9 && hidden.stall_seconds < 1e-9, "{hidden:?}");
        let bound = step(1e-3, 30 * MIB);
        assert!((bound.seconds - 150e-3).abs() < 1e-6, "{bound:?}");
        // With room for one, nothing overlaps.
        let serial = step(10e-3, 10 * MIB);
        assert!((serial.seconds - 300e-3).abs() < 1e-6 && (serial.stall_seconds - 150e-3).abs() < 1e-6, "{serial:?}");
    }

    #[test]
    fn resident_segments_only_compute() {
        let mut all = segments(&[10 * MIB; 5], 1e-3);
        all[1].bytes = 0;
        let step = simulate(&all, 20 * MIB, 1e3 * MIB as f64);
        assert!((step.copy_seconds - 40e-3).abs() < 1e-9, "{step:?}");
        assert!((simulate(&segments(&[0; 3], 2e-3), 0, 1.0).seconds - 6e-3).abs() < 1e-12);
    }
}
