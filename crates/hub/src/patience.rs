//! How often and how fast something is tried again.

use std::time::Duration;

use crate::error::Result;
use crate::event::{Event, Watch};

/// Tries without any progress after which it is given up.
const TRIES: u32 = 6;
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The longest pause that a server may ask for.
const LONGEST_ASKED: Duration = Duration::from_secs(300);

/// Tries that are left, with pauses between them that double.
pub(crate) struct Patience {
    first: Duration,
    failed: u32,
}

impl Patience {
    /// All tries are left.
    pub(crate) fn new(first: Duration) -> Self {
        Self { first, failed: 0 }
    }

    /// Something came: whatever fails next is a new trouble.
    pub(crate) fn renew(&mut self) {
        self.failed = 0;
    }

    /// Waits before the next try of `name`; `false` where there is none left.
    pub(crate) fn wait(
        &mut self,
        name: &str,
        problem: &str,
        asked: Option<Duration>,
        watch: &mut Watch<'_>,
    ) -> Result<bool> {
        self.failed += 1;
        if self.failed >= TRIES {
            return Ok(false);
        }
        let pause = (self.first * 2u32.pow(self.failed - 1)).min(LONGEST_PAUSE);
        let pause = asked.map_or(pause, |asked| asked.clamp(pause, LONGEST_ASKED));
        watch.tell(Event::Retry { name, problem, pause })?;
        watch.pause(pause)?;
        Ok(true)
    }
}

/// Whether another try may go better than an answer with this status.
pub(crate) fn is_passing(status: u16) -> bool {
    matches!(status, 408 | 425 | 429 | 500..=599)
}
