//! A guided step whose rows two devices share: the first rows (the unconditional half) on the second device, the others on the
//! first.
//!
//! The second device gets the latents, and gives its predictions back. What combines the predictions (guidance, `AND`) and all that
//! follows runs on the first device, by the same operators on the same numbers. Both devices have their part recorded; the host
//! waits for neither.

use candle_core::Tensor;
use kiln_network::Denoiser;
use kiln_ops::peer;
use kiln_ops::trace::Trace;

use crate::error::{Error, Result};
use crate::pipeline::recorded::RecordedStep;
use crate::pipeline::second_denoiser::SecondDenoiser;
use crate::pipeline::step::GuidedStep;

/// The two parts of a step.
pub(crate) struct Halves {
    /// The first rows, on the second device.
    first: GuidedStep,
    /// The others.
    last: GuidedStep,
}

impl Halves {
    /// The parts of `step` for `n` images, of which `denoiser` prepares the last one; `None` if there is one row for each
    /// image, as without guidance, or if all rows share state.
    ///
    /// # Errors
    /// Errors of the tensors and of the denoiser.
    pub(crate) fn of(
        step: &GuidedStep,
        n: usize,
        denoiser: Option<&dyn Denoiser>,
        second: &SecondDenoiser,
    ) -> Result<Option<Self>> {
        let (rows, n) = (step.rows(), n.max(1));
        let first = rows / n / 2 * n;
        if first == 0 || step.has_shared_state() {
            second.say_alone();
            return Ok(None);
        }
        let Some(device) = step.device() else { return Ok(None) };
        let last = step.of_rows(first..rows, device)?;
        let last = match denoiser {
            Some(denoiser) => last.prepared(denoiser)?,
            None => last,
        };
        let first = second.take(step.of_rows(0..first, second.device())?)?;
        Ok(Some(Self { first, last }))
    }

    /// The result of `whole`, the step of these parts, for scaled latents `x` `(n, c, h, w)` at `timesteps`
    /// ([`GuidedStep::run`]).
    /// `trace` gets the operators of the first device.
    ///
    /// # Errors
    /// Errors of both denoisers and of the copies.
    pub(crate) fn run(
        &self,
        whole: &GuidedStep,
        (denoiser, recorded): (&dyn Denoiser, Option<&mut RecordedStep>),
        second: &mut SecondDenoiser,
        (x, timesteps): (&Tensor, &[f64]),
        trace: Option<&mut Trace>,
    ) -> Result<Tensor> {
        let n = x.dim(0)?;
        // Before the first device gets its part, behind which the copy would wait.
        let there = peer::to_device(x, second.device())?;
        let here = || self.last.run(denoiser, recorded, x, timesteps, trace);
        let (first, last) = second.in_parallel(&self.first, (&there, timesteps), here);
        let last = last?;
        let first = peer::to_device(&first?, last.device())?;
        whole.joined(Tensor::cat(&[&first, &last], 0)?, n)
    }
}

/// A device that has not given its part.
pub(super) fn missing_part() -> Error {
    Error::Device("the thread of the second device has ended before its part of the step".into())
}
