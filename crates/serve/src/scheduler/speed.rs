//! The measured speed of a worker, from which the seconds of its queue are estimated.

use std::time::Duration;

/// The weight of older turns with each new one: about the last 50 turns count.
const STAYS: f64 = 0.98;

/// Work and the time that it took, of the latest turns. All that a turn contains counts: encoding, steps and decoding.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Speed {
    work: f64,
    seconds: f64,
}

impl Speed {
    /// Adds a turn that did so much work, in the unit of [`super::active::Active::remaining`].
    pub(super) fn add(&mut self, work: usize, time: Duration) {
        self.work = self.work * STAYS + work as f64;
        self.seconds = self.seconds * STAYS + time.as_secs_f64();
    }

    /// Work in a second; 0 before any was done.
    pub(super) fn per_second(self) -> f64 {
        if self.work > 0.0 && self.seconds > 0.0 { self.work / self.seconds } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_that_of_the_latest_turns() {
        let mut speed = Speed::default();
        assert_eq!(speed.per_second(), 0.0);
        speed.add(0, Duration::from_secs(1));
        assert_eq!(speed.per_second(), 0.0, "no work has been done");
        (0..500).for_each(|_| speed.add(100, Duration::from_secs(1)));
        (0..500).for_each(|_| speed.add(300, Duration::from_secs(1)));
        assert!((speed.per_second() - 300.0).abs() < 0.1, "{speed:?}");
        (0..500).for_each(|turn| speed.add(if turn % 2 == 0 { 600 } else { 0 }, Duration::from_secs(1)));
        assert!((speed.per_second() - 300.0).abs() < 5.0, "turns that only decode count: {speed:?}");
    }
}
