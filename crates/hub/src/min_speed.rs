//! The lowest speed at which a server may send.

use std::time::Duration;

/// A server that sends fewer than [`MIN_BYTES`] in this time is given up: the transfer might never end.
const WINDOW: Duration = Duration::from_secs(60);
/// Also the number of bytes after which a connection that was cut counts as progress.
pub(crate) const MIN_BYTES: u64 = 64 << 10;

/// Measures bytes over the time that the transfer waited for them. Time in which the receiver did not read is not counted.
#[derive(Debug, Default)]
pub(crate) struct MinSpeed {
    bytes: u64,
    waited: Duration,
}

impl MinSpeed {
    /// Counts `bytes` that arrived after `waited`. Returns whether the last window was too slow.
    pub(crate) fn is_too_slow(&mut self, bytes: usize, waited: Duration) -> bool {
        self.bytes += bytes as u64;
        self.waited += waited;
        let (is_over, is_slow) = (self.waited >= WINDOW, self.bytes < MIN_BYTES);
        if is_over {
            *self = Self::default();
        }
        is_over && is_slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_a_second_is_too_slow() {
        let second = Duration::from_secs(1);
        let mut speed = MinSpeed::default();
        let stopped = (1..=200).find(|_| speed.is_too_slow(1, second));
        assert_eq!(stopped, Some(60));
        let mut slow = MinSpeed::default();
        assert!((0..1000).all(|_| !slow.is_too_slow(2000, second)), "2 KB a second is slow, but ends");
        // A slow minute is noticed after any number of minutes that were fast enough.
        assert!((0..120).any(|_| slow.is_too_slow(0, second)));
    }
}
