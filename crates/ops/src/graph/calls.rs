//! Functions of a tensor, recorded once they were called a few times.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{Device, Tensor};

use super::{Graph, Recording, is_recordable};
use crate::elementwise::copy;
use crate::error::{Error, Result};

/// The calls of different keys and shapes that are kept. The one that was not used for longest goes first.
const KEPT: usize = 4;
/// The maximum size of a recorded call's input in bytes. For larger ones the GPU takes longer than the host's launches, and memory plans
/// do not count the block.
const LARGEST_INPUT: usize = 1 << 19;

/// Calls of functions of one tensor, which a CUDA GPU replays from the third call with the same key and shape on.
///
/// The host launches hundreds of small kernels more slowly than a GPU runs them. A replay is one launch, with the same bits. A call
/// uses the block of memory of another call if that is large enough. Clones share the calls.
///
/// The recorded launches read the tensors that the function reads besides its operand where they are: call
/// [`RecordedCalls::clear`] before those are freed or moved.
#[derive(Clone, Default)]
pub struct RecordedCalls(Arc<Mutex<Vec<Call>>>);

struct Call {
    key: usize,
    input: Tensor,
    outputs: Vec<Tensor>,
    /// `None` after the first call, which gave the shapes of the outputs.
    recording: Option<Recording>,
}

impl std::fmt::Debug for RecordedCalls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("RecordedCalls").field(&self.calls().len()).finish()
    }
}

impl RecordedCalls {
    /// Calls after which the next one takes its usual time: the last of them captures the work.
    pub const CALLS_UNTIL_RECORDED: usize = 3;

    /// The results of `function` for `x`, a contiguous tensor. `key` distinguishes functions. A function reads nothing of the GPU
    /// on the host, and has contiguous results.
    ///
    /// # Errors
    /// Errors of `function`, and of the GPU.
    pub fn run<E>(
        &self,
        key: usize,
        x: &Tensor,
        function: impl Fn(&Tensor) -> Result<Vec<Tensor>, E> + Sync,
    ) -> Result<Vec<Tensor>, E>
    where
        E: From<Error> + Send + std::fmt::Display,
    {
        if !is_recordable(x.device()) || x.elem_count() * x.dtype().size_in_bytes() > LARGEST_INPUT {
            return function(x);
        }
        let mut calls = self.calls();
        let fits = |call: &Call| call.key == key && call.input.dims() == x.dims() && call.input.dtype() == x.dtype();
        // A call that fails is not kept.
        let Some(place) = calls.iter().position(fits) else {
            let results = function(x)?;
            match Call::new(key, x, &results) {
                Ok(call) => calls.insert(0, call),
                Err(error) => tracing::debug!("no memory to record a repeated call: {error}"),
            }
            calls.truncate(KEPT);
            return Ok(results);
        };
        let mut call = calls.remove(place);
        let others: Vec<&Graph> = calls.iter().filter_map(Call::graph).collect();
        let results = call.run(x, &others, function)?;
        calls.insert(0, call);
        Ok(results)
    }

    /// Drops all calls, once the GPU has ended them.
    pub fn clear(&self) {
        self.calls().clear();
    }

    fn calls(&self) -> MutexGuard<'_, Vec<Call>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call {
    fn new(key: usize, x: &Tensor, results: &[Tensor]) -> Result<Self> {
        let outputs = results.iter().map(Tensor::zeros_like).collect::<candle_core::Result<_>>()?;
        Ok(Self { key, input: x.zeros_like()?, outputs, recording: None })
    }

    fn graph(&self) -> Option<&Graph> {
        self.recording.as_ref().and_then(Recording::graph)
    }

    fn run<E>(
        &mut self,
        x: &Tensor,
        others: &[&Graph],
        function: impl Fn(&Tensor) -> Result<Vec<Tensor>, E> + Sync,
    ) -> Result<Vec<Tensor>, E>
    where
        E: From<Error> + Send + std::fmt::Display,
    {
        let Self { input, outputs, recording, .. } = self;
        let device: &Device = x.device();
        input.slice_set(x, 0, 0).map_err(Error::from)?;
        let run = || -> Result<(), E> {
            let results = function(input)?;
            let mut pairs = outputs.iter().zip(&results);
            Ok(pairs.try_for_each(|(output, result)| output.slice_set(result, 0, 0)).map_err(Error::from)?)
        };
        match recording {
            None => {
                let (result, first) = Recording::first_run(device, run)?;
                result?;
                *recording = Some(first);
            }
            Some(recording) => {
                recording.capture("a repeated call", device, others, run);
                match recording {
                    Recording::Captured(graph) => graph.replay()?,
                    Recording::Prepared(_) | Recording::Eager => run()?,
                }
            }
        }
        Ok(outputs.iter().map(copy).collect::<Result<_>>()?)
    }
}
