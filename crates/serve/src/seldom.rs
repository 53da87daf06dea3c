//! Lines in the log that would come too often.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Allows one line in a time.
pub(crate) struct Seldom {
    every: Duration,
    last: Mutex<Option<Instant>>,
}

impl Seldom {
    /// One line in `every`.
    pub(crate) fn new(every: Duration) -> Self {
        Self { every, last: Mutex::default() }
    }

    /// Whether a line may come now.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due_at(Instant::now())
    }

    fn is_due_at(&self, now: Instant) -> bool {
        let mut last = self.last.lock();
        let is_due = last.is_none_or(|last| now.saturating_duration_since(last) >= self.every);
        if is_due {
            *last = Some(now);
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_comes_in_a_time() {
        let (lines, start) = (Seldom::new(Duration::from_secs(5)), Instant::now());
        let due = [0, 1, 4, 5, 6, 9, 10].map(|second| lines.is_due_at(start + Duration::from_secs(second)));
        assert_eq!(due, [true, false, false, true, false, false, true]);
    }
}
