//! Reading requests: off the threads for answers, and within a budget of memory for all requests together.

use std::time::Duration;

use kiln_media::{DECODER_BASE, DECODER_PIXEL};
use tokio::runtime::Handle;

use crate::budget::{Budget, Taken};
use crate::error::{Refused, RefusedKind};
use crate::options::Limits;

/// The bytes of one permit.
const UNIT: usize = 64 << 10;
/// The most pieces of work at once, however small they are: each runs on a thread with an allocator's arena of its own.
const AT_ONCE: usize = 8;
/// The largest input images that can be read at the same time.
const LARGEST_AT_ONCE: usize = 2;
/// The bytes of a pixel while an image is decoded, resized and turned: the decoder's, and three copies with four channels.
const IMAGE_PIXEL: usize = DECODER_PIXEL as usize + 3 * 4;
/// The longest time that work waits for its part of the budget.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// When a client is asked to come back.
const COME_BACK: Duration = Duration::from_secs(5);

/// Runs the work of reading requests. Work beyond the budget waits, without a thread, in the order of its arrival, and that of one
/// client for a part of the budget.
pub(crate) struct Intake {
    runtime: Handle,
    budget: Budget,
    /// All permits.
    units: usize,
    largest: usize,
}

impl Intake {
    /// A budget that is enough for two of the largest input images at once. Where addresses have limits, one of them is a client's
    /// part.
    pub(crate) fn new(runtime: Handle, limits: &Limits) -> Self {
        let largest = image_bytes(limits.input_pixels);
        let units = LARGEST_AT_ONCE.saturating_mul(largest).div_ceil(UNIT).clamp(AT_ONCE, u32::MAX as usize >> 3);
        let each = limits.has_shares().then_some(units.div_ceil(LARGEST_AT_ONCE));
        Self { runtime, budget: Budget::new(units, each), units, largest }
    }

    /// Does work that needs so many bytes of memory, on a thread of its own.
    ///
    /// # Errors
    /// Errors of the work; [`RefusedKind::Busy`] where the requests before it take a minute.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        let busy = || Refused {
            retry_after: Some(COME_BACK),
            ..Refused::new(RefusedKind::Busy, "the server reads other requests; try again later")
        };
        let permit = tokio::time::timeout(LONGEST_WAIT, self.permit(bytes)).await.map_err(|_| busy())?;
        let done = self.runtime.spawn_blocking(move || {
            let done = work();
            drop(permit);
            done
        });
        done.await.map_err(|error| Refused::new(RefusedKind::Internal, error.to_string()))?
    }

    /// Does work on one input image at a time, of any size that is allowed.
    ///
    /// # Errors
    /// See [`Self::run`].
    pub(crate) async fn run_images<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Refused> + Send + 'static,
    ) -> Result<T, Refused> {
        self.run(self.largest, work).await
    }

    /// A part of the budget: at most all of it, and at least so much that [`AT_ONCE`] pieces of work are the most.
    async fn permit(&self, bytes: usize) -> Option<Taken> {
        let units = bytes.div_ceil(UNIT).clamp(self.units / AT_ONCE, self.units);
        self.budget.take(units).await
    }
}

/// The bytes that reading an image of so many pixels takes.
pub(crate) fn image_bytes(pixels: usize) -> usize {
    pixels.saturating_mul(IMAGE_PIXEL).saturating_add(DECODER_BASE as usize)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn work_waits_for_its_part_of_the_budget() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let limits = Limits { input_pixels: 1 << 20, ..Limits::default() };
        let intake = Arc::new(Intake::new(runtime.handle().clone(), &limits));
        for (bytes, most) in [(0, AT_ONCE), (intake.largest, LARGEST_AT_ONCE), (usize::MAX, 1)] {
            let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let one = || {
                let (intake, now, peak) = (intake.clone(), now.clone(), peak.clone());
                runtime.spawn(async move {
                    let work = move || {
                        peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                        std::thread::sleep(Duration::from_millis(5));
                        now.fetch_sub(1, Ordering::SeqCst);
                        Ok(())
                    };
                    intake.run(bytes, work).await.unwrap();
                })
            };
            let all: Vec<_> = (0..3 * AT_ONCE).map(|_| one()).collect();
            all.into_iter().for_each(|one| runtime.block_on(one).unwrap());
            assert!((1..=most).contains(&peak.load(Ordering::SeqCst)), "{bytes} bytes: {peak:?}");
        }
    }
}
