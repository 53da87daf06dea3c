//! How far the host runs ahead of a GPU.
//!
//! The host starts a recorded step in a fraction of the step's time. Without a limit it would start all steps of an image at
//! once: a progress bar would be full while the GPU has hardly begun, and Ctrl-C would come too late for any of them.
//! So the host waits, after it started a step, for the end of the step before. The GPU always has a whole step to do
//! meanwhile and never waits for the host, and a run that is stopped ends at most one step later.

use candle_core::Device;
use kiln_ops::marker::Marker;

use crate::error::Result;

/// Follows the steps of one batch, or of batches that run together.
#[derive(Default)]
pub(crate) struct StepThrottle {
    /// The end of the last step that was started.
    last: Option<Marker>,
}

impl StepThrottle {
    /// Step `started`, counted from 1, was given to the device. Waits for the step before it, and gives how many are done.
    pub(crate) fn started(&mut self, device: &Device, started: usize) -> Result<usize> {
        let Some(end) = Marker::record(device)? else { return Ok(started) };
        if let Some(before) = self.last.replace(end) {
            before.wait()?;
        }
        Ok(started - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_is_never_behind() {
        let mut throttle = StepThrottle::default();
        assert_eq!([1, 2, 3].map(|step| throttle.started(&Device::Cpu, step).unwrap()), [1, 2, 3]);
    }
}
