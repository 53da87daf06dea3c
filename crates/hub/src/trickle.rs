//! How slowly a server may send.

use std::time::Duration;

/// A server that sends less than [`LEAST`] bytes in so long is given up: it might go on without end.
const WINDOW: Duration = Duration::from_secs(60);
/// Also the bytes after which a connection that was cut counts as progress.
pub(crate) const LEAST: u64 = 64 << 10;

/// Bytes and the time in which they came. The time in which nobody took them does not count.
#[derive(Debug, Default)]
pub(crate) struct Trickle {
    bytes: u64,
    waited: Duration,
}

impl Trickle {
    /// Counts bytes that came after `waited`. Whether that is too slow.
    pub(crate) fn is_too_slow(&mut self, bytes: usize, waited: Duration) -> bool {
        self.bytes += bytes as u64;
        self.waited += waited;
        let (is_over, is_slow) = (self.waited >= WINDOW, self.bytes < LEAST);
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
        let mut trickle = Trickle::default();
        let told = (1..=200).find(|_| trickle.is_too_slow(1, second));
        assert_eq!(told, Some(60));
        let mut slow = Trickle::default();
        assert!((0..1000).all(|_| !slow.is_too_slow(2000, second)), "2 KB a second is slow, but ends");
        // A minute that is too slow is noticed after any number that were not.
        assert!((0..120).any(|_| slow.is_too_slow(0, second)));
    }
}
