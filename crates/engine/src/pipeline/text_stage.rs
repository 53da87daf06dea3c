//! Runs a model's text stage on the weights and threads of an engine.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_network::text::{Error as TextError, PromptText, Runs, TextDevice, TextStage, TextTensors, Tokens};

use crate::component::{LoadedComponent, WeightResidency};
use crate::error::{Error, Result};

/// Called before a text or a portion of it is encoded, with the text's number among those of the encoder and their count. An
/// error stops.
pub(crate) type Proceed<'a> = dyn FnMut(usize, usize) -> Result<()> + 'a;

/// Runs a stage on an engine's components: weights come into memory when the turn of their network comes, and leave after it
/// unless they are kept.
struct OnComponents<'a> {
    parts: &'a [LoadedComponent],
    keep: &'a WeightResidency,
    kept: bool,
    /// Where the texts go.
    device: &'a Device,
    /// See [`Runs::rows_of_call`].
    rows_of_call: Option<usize>,
    proceed: &'a mut Proceed<'a>,
    /// Why the stage was stopped.
    failed: Option<Error>,
}

impl OnComponents<'_> {
    fn stop<T>(&mut self, result: Result<T>) -> kiln_network::text::Result<T> {
        result.map_err(|error| {
            self.failed = Some(error);
            TextError::Stopped
        })
    }
}

impl Runs for OnComponents<'_> {
    fn enter(&mut self, network: usize) -> kiln_network::text::Result<TextDevice> {
        let Some(part) = self.parts.get(network) else { return Err(TextError::Stopped) };
        self.stop(part.enter(self.keep))?;
        let device = TextDevice::of(part.placement());
        // A second stream is left out: another thread decodes there, and a capture would take its kernels.
        let is_alone = part.placement().device.same_device(self.device);
        Ok(match part.recorded().filter(|_| self.kept && is_alone) {
            Some(calls) => device.recording(calls),
            None => device,
        })
    }

    fn proceed(&mut self, text: usize, texts: usize) -> kiln_network::text::Result<()> {
        let result = (self.proceed)(text, texts);
        self.stop(result)
    }

    fn run(&mut self, network: usize, work: &mut (dyn FnMut() + Send)) {
        if let Some(part) = self.parts.get(network) {
            part.run(work);
        }
    }

    fn rows_of_call(&self) -> Option<usize> {
        self.rows_of_call
    }

    fn leave(&mut self, network: usize) {
        if let Some(part) = self.parts.get(network).filter(|_| !self.kept) {
            part.leave();
        }
    }
}

/// Runs the networks of a stage for results on `device`. The weights are read as `keep` says; unless they are `kept`, they leave
/// memory after the last text. `rows_of_call` is [`Runs::rows_of_call`].
pub(super) fn encode<'a>(
    (stage, parts): (&dyn TextStage, &'a [LoadedComponent]),
    texts: &[(PromptText, Arc<Tokens>)],
    (keep, kept, rows_of_call): (&'a WeightResidency, bool, Option<usize>),
    device: &'a Device,
    proceed: &'a mut Proceed<'a>,
) -> Result<Vec<TextTensors>> {
    if texts.is_empty() {
        return Ok(Vec::new());
    }
    let mut on = OnComponents { parts, keep, kept, device, rows_of_call, proceed, failed: None };
    let encoded = stage.encode(texts, &mut on).map_err(|error| match (error, on.failed.take()) {
        (TextError::Stopped, Some(failed)) => failed,
        (error, _) => error.into(),
    })?;
    // Between two streams of a GPU values go through the host, which also waits for them.
    let is_there = |encoded: &TextTensors| encoded.iter().all(|(_, tensor)| tensor.device().same_device(device));
    let join = |encoded: TextTensors| if is_there(&encoded) { Ok(encoded) } else { on_device(&encoded, &Device::Cpu) };
    encoded.into_iter().map(join).collect()
}

/// An encoded text in a device's memory.
///
/// # Errors
/// [`Error::Candle`] if the device has no memory.
pub(super) fn on_device(encoded: &TextTensors, device: &Device) -> Result<TextTensors> {
    encoded.map(|tensor: &Tensor| Ok(tensor.to_device(device)?))
}
