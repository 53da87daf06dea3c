//! The guided step: one call of the denoiser for conditional and unconditional halves, recorded on a GPU.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_nn::TensorLike;
use kiln_ops::graph::is_recordable;
use kiln_ops::trace::{Trace, record};
use kiln_unet::Conditioning;

use crate::error::Result;
use crate::pipeline::denoiser::{Denoiser, Forward};
use crate::pipeline::recorded::RecordedStep;

/// The guided step of a batch: a denoiser's prediction under one set of conditions and one guidance.
pub struct GuidedStep {
    pub(super) constants: Constants,
    /// Tells these constants from all others: a recorded step that holds this has their values.
    pub(super) version: Arc<()>,
    pub(super) dtype: DType,
    /// Whether it is the second call of self-attention guidance.
    pub(super) is_degraded: bool,
}

/// The inputs of a step that stay the same from step to step.
pub(crate) struct Constants<T = Tensor> {
    /// The unconditional half first, where there is guidance.
    pub(crate) conditioning: Conditioning<T>,
    /// Strength of the guidance `(1)` in f32, where there is any.
    pub(crate) cfg_scale: Option<T>,
    /// The weight of each conditional part of an image, `(k n, c, h, w)` in f32, where an image has several parts or one of
    /// another weight than 1. A value for each element: candle sends strides to the GPU, which cannot be recorded.
    pub(crate) weights: Option<T>,
}

impl GuidedStep {
    /// A step with `conditioning`, the unconditional half first where there is guidance, in `dtype`. Without `cfg_scale` the
    /// step gives both halves, or the one that there is.
    pub fn new(conditioning: &Conditioning, cfg_scale: Option<f64>, dtype: DType) -> Result<Self> {
        let constants = Constants::new(conditioning, cfg_scale, dtype)?;
        Ok(Self { constants, version: Arc::default(), dtype, is_degraded: false })
    }

    /// The same step with `k` conditional parts for each image (`AND`), which `weights` `(k n, c, h, w)` weigh. The
    /// conditioning's batch is `(1 + k) n` then.
    pub(crate) fn with_weights(mut self, weights: Option<Tensor>) -> Self {
        self.constants.weights = weights;
        self
    }

    /// The same step with the text's keys and values made now, once for all evaluations, where `denoiser` does so.
    pub fn with_text_keys(mut self, denoiser: &dyn Denoiser) -> Result<Self> {
        self.constants.conditioning.text_keys = denoiser.text_keys(&self.constants.conditioning.context)?;
        Ok(self)
    }

    /// The step of the first `n` rows alone, for self-attention guidance.
    pub(crate) fn of_first_rows(&self, n: usize) -> Result<Self> {
        let first = |rows: &[&Tensor]| -> kiln_unet::Result<Tensor> {
            Ok(TensorLike::narrow(*rows.first().unwrap_or(&&self.constants.conditioning.context), 0, 0, n)?)
        };
        let mut conditioning = Conditioning::combine(&[&self.constants.conditioning], first)?;
        conditioning.hooks.map = None;
        Ok(Self { is_degraded: true, ..Self::new(&conditioning, None, self.dtype)? })
    }

    /// The step of `rows` of the network's batch alone, on `device`: it gives the predictions of all these rows, in f32.
    ///
    /// # Errors
    /// Those of [`Conditioning::of_rows`].
    pub(crate) fn of_rows(&self, rows: Range<usize>, device: &Device) -> Result<Self> {
        let conditioning = self.constants.conditioning.of_rows(rows, device)?;
        let constants = Constants { conditioning, cfg_scale: None, weights: None };
        Ok(Self { constants, version: Arc::default(), dtype: self.dtype, is_degraded: false })
    }

    /// What the step gives for `n` images where the network's predictions for all rows are `all` `(k n, c, h, w)`.
    ///
    /// # Errors
    /// Those of the tensors.
    pub(crate) fn joined(&self, all: Tensor, n: usize) -> Result<Tensor> {
        self.constants.joined(all, n, None)
    }

    /// The rows of the network's batch.
    pub(crate) fn rows(&self) -> usize {
        self.constants.conditioning.context.dims().first().copied().unwrap_or(0)
    }

    /// Whether all rows have something in common that changes from step to step: a stored feature, or where the network attends to.
    pub(crate) fn has_shared_state(&self) -> bool {
        let hooks = &self.constants.conditioning.hooks;
        hooks.cache.is_some() || hooks.map.is_some()
    }

    /// The feature that the last run has stored, where it stores one.
    pub(crate) fn stored_feature(&self) -> Option<&Tensor> {
        let hooks = &self.constants.conditioning.hooks;
        hooks.feature().filter(|_| !hooks.is_shortcut())
    }

    /// The denoiser's prediction for scaled latents `x` `(n, c, h, w)` at `timesteps`, one for all images or one for each,
    /// in f32: `(k n, ..)` where there are conditions for `k` predictions and no strength. `recorded` belongs to this denoiser
    /// with these weights; without it nothing is recorded. `trace` gets how long each operator took: on a GPU operators
    /// are launched one by one then, even where a step is recorded.
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
        let recordable = is_recordable(device) && !denoiser.is_streamed();
        match recorded.filter(|_| recordable) {
            Some(recorded) => {
                let inputs = [&latents, &timestep];
                recorded.run(self, inputs, denoiser, trace)
            }
            None => {
                let run = || guided_step(denoiser, &latents, &timestep, &self.constants, self.dtype, None);
                trace_into(trace, device, run)
            }
        }
    }
}

impl Constants {
    fn new(conditioning: &Conditioning, cfg_scale: Option<f64>, dtype: DType) -> Result<Self> {
        let device = conditioning.context.device();
        let cfg_scale = cfg_scale.map(|scale| Tensor::new(&[scale as f32], device)).transpose()?;
        Ok(Self { conditioning: conditioning.to_dtype(dtype)?, cfg_scale, weights: None })
    }

    /// How many predictions the step gives for each of `n` images: all where no strength joins them. Parts that are combined
    /// are one.
    pub(super) fn predictions(&self, n: usize) -> usize {
        let perturbed = self.perturbed(n);
        match (&self.cfg_scale, &self.weights) {
            (Some(_), _) => 1,
            (None, Some(_)) => (self.copies(n) - perturbed).min(2) + perturbed.min(1),
            (None, None) => self.copies(n),
        }
    }

    /// All tensors, in one order.
    pub(super) fn tensors(&self) -> Vec<&Tensor> {
        self.conditioning.tensors().into_iter().chain(&self.cfg_scale).chain(&self.weights).collect()
    }

    /// Whether a step that was recorded with these constants can be replayed with the values of `other`.
    pub(super) fn same_shapes(&self, other: &Self) -> bool {
        let shapes = |all: &Self| all.tensors().iter().map(|tensor| tensor.dims().to_vec()).collect::<Vec<_>>();
        let kinds = |all: &Self| [all.cfg_scale.is_some(), all.weights.is_some()];
        kinds(self) == kinds(other)
            && shapes(self) == shapes(other)
            && self.conditioning.constants() == other.conditioning.constants()
    }

    /// Writes the values of `other`, which has the same shapes.
    pub(super) fn write(&self, other: &Self) -> Result<()> {
        for (to, from) in self.tensors().into_iter().zip(other.tensors()) {
            to.slice_set(&kiln_ops::contiguous(from)?, 0, 0)?;
        }
        Ok(())
    }

    pub(super) fn copy(&self) -> Result<Self> {
        let conditioning = self.conditioning.copy()?;
        let cfg_scale = self.cfg_scale.as_ref().map(Tensor::force_contiguous).transpose()?;
        let weights = self.weights.as_ref().map(Tensor::force_contiguous).transpose()?;
        Ok(Self { conditioning, cfg_scale, weights })
    }
}

impl<T: TensorLike> Constants<T> {
    /// How many of the network's rows for each of `n` images have perturbed attention.
    fn perturbed(&self, n: usize) -> usize {
        let perturbed = self.conditioning.hooks.perturbed.as_ref();
        perturbed.map_or(0, |perturbed| perturbed.rows(self.copies(n)))
    }

    /// What the step gives for `n` images where the network's predictions for all rows are `y`: combined by their weights and
    /// guided where the step does so, in f32.
    fn joined(&self, mut y: T, n: usize, out: Option<&T>) -> Result<T> {
        if let Some(weights) = &self.weights {
            y = compose(&y, weights, self.perturbed(n) > 0)?;
        }
        let Some(scale) = &self.cfg_scale else {
            // Conditions for both halves: what guidance makes of them is decided outside of the step.
            let y = y.to_dtype(DType::F32)?;
            let Some(out) = out else { return Ok(y) };
            out.slice_set(&y, 0, 0)?;
            return Ok(out.clone());
        };
        Ok(y.guidance(scale, out)?)
    }

    /// How many times the network sees each of `n` images: as often as there are conditions for it.
    fn copies(&self, n: usize) -> usize {
        self.conditioning.context.dims().first().map_or(0, |conditions| conditions / n.max(1))
    }
}

/// Does `run`, and writes to `trace`, where there is one, how long its operators took.
pub(super) fn trace_into<T>(trace: Option<&mut Trace>, device: &Device, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(trace) = trace else { return run() };
    let result;
    (result, *trace) = record(device, run)?;
    Ok(result)
}

/// One guided step in f32: `uncond + cfg_scale (cond - uncond)` of the network's output, or that output, of both halves
/// where there are conditions for both.
pub(crate) fn guided_step<T: TensorLike>(
    denoiser: &(impl Forward<T> + ?Sized),
    latents: &T,
    timestep: &T,
    constants: &Constants<T>,
    dtype: DType,
    out: Option<&T>,
) -> Result<T> {
    let x = latents.to_dtype(dtype)?;
    let [n, ..] = x.size4()?;
    let copies = constants.copies(n);
    let x = if copies == 1 { x } else { T::cat(&vec![&x; copies], 0)? };
    // One timestep is that of all rows.
    let many = copies > 1 && timestep.dims() != [1];
    let timesteps = if many { T::cat(&vec![timestep; copies], 0)? } else { timestep.clone() };
    let y = denoiser.forward(&x, &timesteps, &constants.conditioning)?;
    constants.joined(y, n, out)
}

/// Composable diffusion (Liu et al., arXiv 2206.01714, section 4): of outputs `((1 + k) n, c, h, w)`, the unconditional
/// ones first, those two halves `(2 n, c, h, w)` in f32 whose guidance is the weighted sum of the parts' guidances: the
/// second is `uncond + sum_i w_i (cond_i - uncond)`. `weights` are `(k n, c, h, w)`. Where `perturbed` rows `(k n, ..)` follow, they
/// are combined in the same way.
fn compose<T: TensorLike>(all: &T, weights: &T, perturbed: bool) -> Result<T> {
    let ([parts, ..], [batch, ..]) = (weights.size4()?, all.size4()?);
    let kinds = if perturbed { 2 } else { 1 };
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

/// How many values of a tensor are infinite or no numbers.
pub fn count_not_finite(tensor: &Tensor) -> Result<usize> {
    let values: Vec<f32> = kiln_ops::cast(tensor, DType::F32)?.flatten_all()?.to_vec1()?;
    Ok(values.iter().filter(|value| !value.is_finite()).count())
}

#[cfg(test)]
mod tests {
    use super::*;

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
