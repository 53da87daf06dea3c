//! Simulates the steps of a network with streamed segments and a ring.
//!
//! One engine copies and one computes, as on a GPU. The slots and the rules for starting copies are those of the real
//! ring ([`super::window`]), so a simulated step is the best that the ring can achieve with these times.

use super::slot_layout::SlotLayout;
use super::window::{Entry, Window};

/// The times of a segment.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SegmentTimes {
    /// The bytes that are copied in every step; 0 for a resident segment.
    pub bytes: usize,
    /// The seconds of its computation.
    pub seconds: f64,
}

/// The times of copies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyTimes {
    /// Bytes per second of a large copy.
    pub bytes_per_second: f64,
    /// Seconds that each copy takes in addition.
    pub seconds_per_copy: f64,
    /// Seconds from the end of a copy to the start of computing that waits for it, and from the end of computing to the start
    /// of a copy that waits for it.
    pub seconds_per_wait: f64,
    /// Whether a GPU's copy engine makes them: in pieces, and without taking anything from computing. The CPU packs whole
    /// segments with the cores that compute.
    pub by_engine: bool,
}

impl CopyTimes {
    /// Copies of whole segments at this rate, without any other cost.
    pub fn at(bytes_per_second: f64) -> Self {
        Self { bytes_per_second, seconds_per_copy: 0.0, seconds_per_wait: 0.0, by_engine: false }
    }

    /// Seconds of copying `bytes` at once.
    pub fn seconds(&self, bytes: usize) -> f64 {
        self.seconds_per_copy + bytes as f64 / self.bytes_per_second
    }
}

/// A simulated step in the steady state.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct SimulatedStep {
    /// The duration.
    pub seconds: f64,
    /// Seconds of copying.
    pub copy_seconds: f64,
    /// The seconds that computing waited for copies.
    pub stall_seconds: f64,
}

impl SimulatedStep {
    /// The seconds of copying that overlapped with computing.
    pub fn hidden_seconds(&self) -> f64 {
        (self.copy_seconds - self.stall_seconds).max(0.0)
    }

    /// The overlapped part of the shorter of copying and computing: from 0 to 1. It is 1 if nothing can overlap.
    pub fn overlap(&self) -> f64 {
        let compute = self.seconds - self.stall_seconds;
        let most = self.copy_seconds.min(compute);
        if most > 0.0 { (self.hidden_seconds() / most).min(1.0) } else { 1.0 }
    }
}

/// The number of steps until the steady state: the ring's content at the start of a step depends on the step before.
const PASSES: usize = 4;

/// Simulates steps of `segments` through a ring of `ring` bytes, which are copied in pieces of at most about `piece` bytes,
/// and returns the last. A ring that is smaller than the largest streamed segment is enlarged to it.
pub fn simulate(segments: &[SegmentTimes], ring: usize, piece: usize, copies: &CopyTimes) -> SimulatedStep {
    let sizes: Vec<usize> = segments.iter().map(|segment| segment.bytes).filter(|&bytes| bytes > 0).collect();
    let ring = ring.max(sizes.iter().copied().max().unwrap_or(0));
    let mut window = Window::new(SlotLayout::new(&sizes, ring, piece));
    let mut copied = vec![0.0; sizes.len()]; // when the last copy of a segment ended
    let mut left = vec![f64::NEG_INFINITY; sizes.len()]; // when its last use ended
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
            // The order is that of the host's calls: the slot of a segment that is left is filled before the next one
            // is entered.
            loop {
                while let Some(start) = window.next() {
                    let wait = copies.seconds_per_wait;
                    let free = start.evicted.iter().fold(copying, |free: f64, &slot| free.max(left[slot] + wait));
                    let seconds = copies.seconds(start.bytes.len());
                    copying = free + seconds;
                    copied[start.slot] = copying;
                    step.copy_seconds += seconds;
                }
                if window.enter(slot) == Entry::Ready {
                    break;
                }
            }
            let arrived = copied[slot] + copies.seconds_per_wait;
            step.stall_seconds += (arrived - computing).max(0.0);
            computing = computing.max(arrived) + segment.seconds;
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
    fn the_shorter_of_copying_and_computing_is_hidden() {
        let even = [10 * MIB; 15]; // five turns of a ring of three segments: the last and the first do not overlap
        let rate = 1e3 * MIB as f64; // 10 ms a segment
        let step = |seconds, ring| simulate(&segments(&even, seconds), ring, usize::MAX, &CopyTimes::at(rate));
        let hidden = step(20e-3, 30 * MIB);
        assert!((hidden.seconds - 300e-3).abs() < 1e-9 && hidden.stall_seconds < 1e-9, "{hidden:?}");
        let bound = step(1e-3, 30 * MIB);
        assert!((bound.seconds - 150e-3).abs() < 1e-6, "{bound:?}");
        // With room for one segment, nothing overlaps.
        let serial = step(10e-3, 10 * MIB);
        assert!((serial.seconds - 300e-3).abs() < 1e-6 && (serial.stall_seconds - 150e-3).abs() < 1e-6, "{serial:?}");
    }

    #[test]
    fn resident_segments_only_compute() {
        let mut all = segments(&[10 * MIB; 5], 1e-3);
        all[1].bytes = 0;
        let step = simulate(&all, 20 * MIB, usize::MAX, &CopyTimes::at(1e3 * MIB as f64));
        assert!((step.copy_seconds - 40e-3).abs() < 1e-9, "{step:?}");
        assert!((simulate(&segments(&[0; 3], 2e-3), 0, usize::MAX, &CopyTimes::at(1.0)).seconds - 6e-3).abs() < 1e-12);
    }
}
