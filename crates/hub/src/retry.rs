//! When a failed request is repeated, and after which pause.

use std::time::Duration;

use crate::error::Result;
use crate::event::{Event, Monitor};

/// Attempts without progress after which a request is given up.
const ATTEMPTS: u32 = 6;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause that a server may ask for with `Retry-After`.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(300);

/// Exponential backoff: counts the attempts, and doubles the pause between them.
pub(crate) struct RetryPolicy {
    first_pause: Duration,
    failures: u32,
}

impl RetryPolicy {
    /// A policy with all attempts left. `first_pause` is the pause before the second attempt.
    pub(crate) fn new(first_pause: Duration) -> Self {
        Self { first_pause, failures: 0 }
    }

    /// Restores all attempts. Call it when an attempt made progress.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Waits before the next attempt at `name` and returns `true`, or returns `false` if no attempt is left. `retry_after` is
    /// the pause that the server asked for; the wait is at least as long, up to five minutes.
    ///
    /// # Errors
    /// [`Error::Interrupted`](crate::Error::Interrupted) if the listener asks to stop.
    pub(crate) fn wait(
        &mut self,
        name: &str,
        problem: &str,
        retry_after: Option<Duration>,
        monitor: &mut Monitor<'_>,
    ) -> Result<bool> {
        self.failures += 1;
        if self.failures >= ATTEMPTS {
            return Ok(false);
        }
        let pause = (self.first_pause * 2u32.pow(self.failures - 1)).min(LONGEST_PAUSE);
        let pause = retry_after.map_or(pause, |asked| asked.clamp(pause, LONGEST_RETRY_AFTER));
        monitor.send(Event::Retry { name, problem, pause })?;
        monitor.pause(pause)?;
        Ok(true)
    }
}

/// Whether a request with this HTTP status may succeed when it is repeated.
pub(crate) fn is_transient(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}
