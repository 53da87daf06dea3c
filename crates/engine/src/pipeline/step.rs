//! The guided step: one call of the denoiser for conditional and unconditional halves, recorded on a GPU.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_network::slots::{ATTENTION_MAP, BLOCK_CACHE, PERTURBED, SKIPPED_LAYERS};
use kiln_network::{Access, Denoiser, Forward, Inputs, Rows, Slot};
use kiln_nn::TensorLike;
use kiln_ops::graph::is_recordable;
use kiln_ops::peer;
use kiln_ops::trace::{Trace, record};

use crate::error::Result;
use crate::pipeline::recorded::RecordedStep;

/// The strength of guidance `(1)` in f32, if the step applies it.
const CFG_SCALE: Slot = Slot::shared("guidance scale").keeping_dtype();
/// The weight of each conditional part of an image, `(k n, c, h, w)` in f32, if an image has several parts or one of another
/// weight than 1. A value for each element: candle sends strides to the GPU, which cannot be recorded.
const PART_WEIGHTS: Slot = Slot::last("part weights").keeping_dtype();

/// The guided step of a batch: a denoiser's prediction under one set of inputs and one guidance.
pub struct GuidedStep {
    /// The inputs of the denoiser and of guidance, which stay the same from step to step. With guidance the unconditional rows
    /// come first.
    pub(super) inputs: Inputs,
    /// Identifies these inputs; a recorded step with the same identity has their values.
    pub(super) version: Arc<()>,
    pub(super) dtype: DType,
    /// Whether it is the second call of self-attention guidance.
    pub(super) is_degraded: bool,
}

impl GuidedStep {
    /// A step with `inputs`, the unconditional rows first with guidance, in `dtype`. Without `cfg_scale` the step gives both halves, or
    /// the only one.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub fn new(inputs: &Inputs, cfg_scale: Option<f64>, dtype: DType) -> Result<Self> {
        let device = device_of(inputs);
        let cfg_scale =
            cfg_scale.zip(device).map(|(scale, device)| Tensor::new(&[scale as f32], device)).transpose()?;
        let inputs = with_step_inputs(inputs.to_dtype(dtype)?, cfg_scale, None);
        Ok(Self { inputs, version: Arc::default(), dtype, is_degraded: false })
    }

    /// Adds weights `(k n, c, h, w)` for `k` conditional parts of each image (`AND`). The batch of the inputs is `(1 + k) n`
    /// then.
    pub(crate) fn with_weights(self, weights: Option<Tensor>) -> Self {
        let inputs = with_step_inputs(self.inputs, None, weights);
        Self { inputs, ..self }
    }

    /// Adds the inputs that `denoiser` makes once for all evaluations.
    ///
    /// # Errors
    /// Errors of the denoiser.
    pub fn prepared(self, denoiser: &dyn Denoiser) -> Result<Self> {
        Ok(Self { inputs: denoiser.prepare(self.inputs)?, ..self })
    }

    /// The step of the first `n` rows alone, for self-attention guidance.
    pub(crate) fn of_first_rows(&self, n: usize) -> Result<Self> {
        let inputs = self.network_inputs().map(|slot, tensor| match slot.rows {
            Rows::Shared => Ok(tensor.clone()),
            Rows::Each | Rows::Last => TensorLike::narrow(tensor, 0, 0, n),
        })?;
        // The attention of the whole step stays as it is.
        let inputs = inputs.without(ATTENTION_MAP);
        Ok(Self { is_degraded: true, ..Self::new(&inputs, None, self.dtype)? })
    }

    /// The step of `rows` of the network's batch alone, on `device`: it gives the predictions of all these rows, in f32.
    ///
    /// # Errors
    /// See [`Inputs::rows`] and of the copies.
    pub(crate) fn of_rows(&self, rows: Range<usize>, device: &Device) -> Result<Self> {
        let inputs = self.network_inputs().rows(rows)?.map(|_, tensor| peer::to_device(tensor, device))?;
        Ok(Self { inputs, version: Arc::default(), dtype: self.dtype, is_degraded: false })
    }

    /// The inputs of the network alone.
    fn network_inputs(&self) -> Inputs {
        self.inputs.clone().without(CFG_SCALE).without(PART_WEIGHTS)
    }

    /// The result of the step for `n` images if the network's predictions for all rows are `all` `(k n, c, h, w)`.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub(crate) fn joined(&self, all: Tensor, n: usize) -> Result<Tensor> {
        joined(&self.inputs, all, n, None)
    }

    /// The rows of the network's batch.
    pub(crate) fn rows(&self) -> usize {
        self.inputs.batch()
    }

    /// The device of the inputs.
    pub(crate) fn device(&self) -> Option<&Device> {
        device_of(&self.inputs)
    }

    /// Whether all rows share something that changes from step to step: a stored feature, or the attention of a layer.
    pub(crate) fn has_shared_state(&self) -> bool {
        self.inputs.state().next().is_some()
    }

    /// The tensors that the last run has written for later ones.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (&Slot, &Tensor)> {
        self.inputs.state().filter(|(slot, _)| slot.access == Access::Output)
    }

    /// The denoiser's prediction for scaled latents `x` `(n, c, h, w)` at `timesteps`, one for all images or one for each, in
    /// f32: `(k n, ..)` for conditions of `k` predictions without a strength. `recorded` belongs to this denoiser with these
    /// weights; without it nothing is recorded. `trace` gets how long each operator took: on a GPU operators are launched one
    /// by one then, even if a step is recorded.
    pub fn run(
        &self,
        denoiser: &dyn Denoiser,
        recorded: Option<&mut RecordedStep>,
        x: &Tensor,
        timesteps: &[f64],
        trace: Option<&mut Trace>,
    ) -> Result<Tensor> {
        let (latents, device) = (kiln_ops::contiguous(&kiln_ops::cast(x, DType::F32)?)?, x.device());
        let timestep = match timesteps {
            // Filled by the GPU: a copy to it would queue behind the copies of streamed weights.
            [one] => Tensor::full(*one as f32, 1, device)?,
            many => Tensor::new(many.iter().map(|&timestep| timestep as f32).collect::<Vec<_>>(), device)?,
        };
        // Weights that are streamed are elsewhere before they are used: the host must be there to order that.
        // The first-block cache reads a decision back.
        let decides = self.inputs.constant(BLOCK_CACHE).is_some();
        let recordable = is_recordable(device) && !denoiser.is_streamed() && !decides;
        match recorded.filter(|_| recordable) {
            Some(recorded) => {
                let inputs = [&latents, &timestep];
                recorded.run(self, inputs, denoiser, trace)
            }
            None => {
                let run = || guided_step(denoiser, &latents, &timestep, &self.inputs, self.dtype, None);
                trace_into(trace, device, run)
            }
        }
    }
}

/// The device of inputs.
fn device_of(inputs: &Inputs) -> Option<&Device> {
    inputs.tensors().next().map(Tensor::device)
}

/// `inputs` of a network with the strength of guidance `(1)` and the weights of conditional parts.
pub(crate) fn with_step_inputs<T>(mut inputs: Inputs<T>, cfg_scale: Option<T>, weights: Option<T>) -> Inputs<T> {
    for (slot, value) in [(CFG_SCALE, cfg_scale), (PART_WEIGHTS, weights)] {
        inputs = match value {
            Some(value) => inputs.with(slot, value),
            None => inputs,
        };
    }
    inputs
}

/// The number of predictions that a step with these inputs gives for each of `n` images: all if no strength joins them. Parts
/// that are combined are one.
pub(super) fn predictions<T: TensorLike>(inputs: &Inputs<T>, n: usize) -> usize {
    let repeated = repeated(inputs, n);
    match (inputs.get(CFG_SCALE), inputs.get(PART_WEIGHTS)) {
        (Some(_), _) => 1,
        (None, Some(_)) => (copies(inputs, n) - repeated).min(2) + repeated.min(1),
        (None, None) => copies(inputs, n),
    }
}

/// The number of the network's rows for each of `n` images that are there once more, with perturbed attention or without some
/// blocks.
fn repeated<T>(inputs: &Inputs<T>, n: usize) -> usize {
    (inputs.rows_of(PERTURBED) + inputs.rows_of(SKIPPED_LAYERS)) / n.max(1)
}

/// The number of the network's rows for each of `n` images.
fn copies<T: TensorLike>(inputs: &Inputs<T>, n: usize) -> usize {
    inputs.batch() / n.max(1)
}

/// The result of a step for `n` images if the network's predictions for all rows are `y`: combined by their weights and
/// guided as far as the step does so, in f32.
fn joined<T: TensorLike>(inputs: &Inputs<T>, mut y: T, n: usize, out: Option<&T>) -> Result<T> {
    if let Some(weights) = inputs.get(PART_WEIGHTS) {
        y = compose(&y, weights, repeated(inputs, n) > 0)?;
    }
    let Some(scale) = inputs.get(CFG_SCALE) else {
        // Both halves: guidance is applied outside of the step.
        let y = y.to_dtype(DType::F32)?;
        let Some(out) = out else { return Ok(y) };
        out.slice_set(&y, 0, 0)?;
        return Ok(out.clone());
    };
    Ok(y.guidance(scale, out)?)
}

/// Does `run`, and writes to `trace`, if there is one, how long its operators took.
pub(super) fn trace_into<T>(trace: Option<&mut Trace>, device: &Device, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(trace) = trace else { return run() };
    let result;
    (result, *trace) = record(device, run)?;
    Ok(result)
}

/// One guided step in f32: `uncond + cfg_scale (cond - uncond)` of the network's output, or that output, of both halves
/// if there are conditions for both.
pub(crate) fn guided_step<T: TensorLike>(
    denoiser: &(impl Forward<T> + ?Sized),
    latents: &T,
    timestep: &T,
    inputs: &Inputs<T>,
    dtype: DType,
    out: Option<&T>,
) -> Result<T> {
    let x = latents.to_dtype(dtype)?;
    let [n, ..] = x.size4()?;
    let copies = copies(inputs, n);
    let x = if copies == 1 { x } else { T::cat(&vec![&x; copies], 0)? };
    // One timestep is that of all rows.
    let many = copies > 1 && timestep.dims() != [1];
    let timesteps = if many { T::cat(&vec![timestep; copies], 0)? } else { timestep.clone() };
    let y = denoiser.forward(&x, &timesteps, inputs)?;
    joined(inputs, y, n, out)
}

/// Composable diffusion (Liu et al., arXiv 2206.01714, section 4): of outputs `((1 + k) n, c, h, w)`, the unconditional
/// ones first, those two halves `(2 n, c, h, w)` in f32 whose guidance is the weighted sum of the parts' guidances: the
/// second is `uncond + sum_i w_i (cond_i - uncond)`. `weights` are `(k n, c, h, w)`. Where `repeated` rows `(k n, ..)` follow, they
/// are combined in the same way.
fn compose<T: TensorLike>(all: &T, weights: &T, repeated: bool) -> Result<T> {
    let ([parts, ..], [batch, ..]) = (weights.size4()?, all.size4()?);
    let kinds = if repeated { 2 } else { 1 };
    let n = batch - kinds * parts;
    let all = all.to_dtype(DType::F32)?;
    let uncond = all.narrow(0, 0, n)?;
    let mut found = vec![uncond.clone()];
    for kind in 0..kinds {
        let mut composed = uncond.clone();
        for start in (0..parts).step_by(n) {
            let mut step = all.narrow(0, n + kind * parts + start, n)?.sub(&uncond)?;
            step = step.mul(&weights.narrow(0, start, n)?)?;
            composed = composed.add(&step)?;
        }
        found.push(composed);
    }
    Ok(T::cat(&found.iter().collect::<Vec<_>>(), 0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of skip-layer guidance are one more prediction of each image, as those with perturbed attention.
    #[test]
    fn rows_that_skip_blocks_are_predictions_of_their_own() {
        let context = Tensor::zeros((6, 1, 1), DType::F32, &Device::Cpu).unwrap();
        let inputs = Inputs::new().with(kiln_network::slots::CONTEXT, context);
        let skipped = inputs.clone().with_constant(SKIPPED_LAYERS, 0b110).with_rows(SKIPPED_LAYERS, 2);
        assert_eq!((repeated(&inputs, 2), repeated(&skipped, 2)), (0, 1));
        assert_eq!(predictions(&skipped, 2), 3);
        let weights = Tensor::zeros((2, 1, 1, 1), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(predictions(&with_step_inputs(skipped, None, Some(weights)), 2), 3);
    }

    #[test]
    fn parts_count_by_their_weights() {
        // Two images of one value each: unconditional 1 and 2, first parts 3 and 5, second parts 0 and 10.
        let all = Tensor::new(&[1f32, 2., 3., 5., 0., 10.], &Device::Cpu).unwrap().reshape((6, 1, 1, 1)).unwrap();
        let weights = Tensor::new(&[1f32, 0.5, 2., -1.], &Device::Cpu).unwrap().reshape((4, 1, 1, 1)).unwrap();
        let values = |tensor: Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let found = values(compose(&all, &weights, false).unwrap());
        assert_eq!(found, [1.0, 2.0, 1.0 + 2.0 - 2.0, 2.0 + 1.5 - 8.0]);
        // The same parts again as perturbed ones.
        let twice = Tensor::cat(&[&all, &all.narrow(0, 2, 4).unwrap()], 0).unwrap();
        let again = values(compose(&twice, &weights, true).unwrap());
        assert_eq!((&again[..4], &again[4..]), (&found[..], &found[2..]));
    }
}
