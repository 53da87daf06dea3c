//! Guided steps that were recorded on a GPU, and their replays.
//!
//! On a GPU `pipeline::recorded` keeps the last step of each kind (the whole network, a shortcut, the second call of
//! self-attention guidance). A server, whose batches change from step to step, keeps those of more sizes as far as
//! their inputs fit into a twentieth of the available memory. All of them share one block of the pool, as large as the
//! largest one needs.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_network::{Access, Denoiser, Inputs};
use kiln_ops::graph::{Graph, Recording};
use kiln_ops::trace::Trace;

use crate::error::Result;
use crate::pipeline::step::{GuidedStep, guided_step, predictions, trace_into};

/// Runs of one size after which a step takes its usual time: on a GPU the first one makes what libraries need, and the
/// second one is recorded.
pub const RUNS_UNTIL_RECORDED: usize = 2;

/// Replays before a step is traced. They keep the GPU busy while the host launches one step operator by operator, which
/// takes the host longer than the GPU needs for the step. Otherwise the trace would show a GPU that waits.
const REPLAYS_AHEAD: usize = 4;

/// The steps of one set of weights as they were recorded on a GPU: the last one of each kind, and more of other sizes as far as
/// a budget allows. All of them share one block of memory, as large as the largest one needs.
#[derive(Default)]
pub struct RecordedStep {
    /// The one that ran last comes first.
    steps: Vec<Recorded>,
    /// Bytes of the inputs of steps beyond the last one of each kind.
    budget: usize,
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The whole network.
    Whole,
    /// The part of the network that uses a stored feature.
    Shortcut,
    /// The second call of self-attention guidance.
    Degraded,
}

struct Recorded {
    kind: Kind,
    /// The tensors that the recorded launches read.
    inputs: StepInputs,
    /// The identity of the step whose values the inputs have.
    version: Arc<()>,
    /// `(n, c, h, w)` in f32, or `(k n, c, h, w)` where the step gives `k` predictions.
    output: Tensor,
    dtype: DType,
    recording: Recording,
}

/// All inputs of a step besides the weights.
struct StepInputs {
    /// `(n, c, h, w)` in f32.
    latents: Tensor,
    /// `(1)` or `(n)` in f32.
    timestep: Tensor,
    others: Inputs,
}

impl RecordedStep {
    /// Steps of several sizes, whose inputs take `budget` bytes besides those of the last one of each kind.
    pub fn with_budget(budget: usize) -> Self {
        Self { steps: Vec::new(), budget }
    }

    /// Drops all steps: those of other weights, or of weights elsewhere.
    pub fn clear(&mut self) {
        self.steps.clear();
    }

    /// Does `run`, which has nothing to do with the step, with the step's memory, which nothing else uses between two
    /// steps. `run` frees what it allocates on the GPU.
    pub fn lend<T>(&self, run: impl FnOnce() -> T) -> T {
        match self.steps.iter().filter(|step| step.kind == Kind::Whole).find_map(Recorded::graph) {
            Some(graph) => graph.with_arena(run),
            None => run(),
        }
    }

    /// The prediction of `step` for `latents` `(n, c, h, w)` at `timestep` `(1)` or `(n)`, both contiguous and in f32.
    pub(super) fn run(
        &mut self,
        step: &GuidedStep,
        [latents, timestep]: [&Tensor; 2],
        denoiser: &dyn Denoiser,
        trace: Option<&mut Trace>,
    ) -> Result<Tensor> {
        let device = latents.device();
        let uses_stored = step.inputs.state().any(|(slot, _)| slot.access == Access::State);
        let key = step.inputs.key();
        let kind = match (step.is_degraded, uses_stored) {
            (true, _) => Kind::Degraded,
            (_, true) => Kind::Shortcut,
            _ => Kind::Whole,
        };
        let fits = |recorded: &Recorded| {
            recorded.kind == kind
                && recorded.dtype == step.dtype
                && recorded.inputs.latents.dims() == latents.dims()
                && recorded.inputs.timestep.dims() == timestep.dims()
                && recorded.inputs.others.key() == key
        };
        // A step that fails is not kept.
        let recorded = match self.steps.iter().position(fits) {
            Some(place) => {
                let mut recorded = self.steps.remove(place);
                recorded.write(step, [latents, timestep])?;
                recorded.step(denoiser, device, &mut self.steps, trace)?;
                recorded
            }
            None => {
                self.make_room(kind);
                Recorded::first_run(kind, step, [latents, timestep], denoiser, trace)?
            }
        };
        recorded.read(step)?;
        let output = kiln_ops::copy(&recorded.output)?;
        self.steps.insert(0, recorded);
        Ok(output)
    }

    /// Drops what a new step of `kind` leaves no room for.
    fn make_room(&mut self, kind: Kind) {
        let (mut seen, mut bytes) = (vec![kind], 0);
        let budget = self.budget;
        self.steps.retain(|step| {
            if !seen.contains(&step.kind) {
                seen.push(step.kind);
                return true;
            }
            bytes += step.bytes();
            bytes <= budget
        });
    }
}

impl Recorded {
    /// Runs a step as it will be recorded: with the same requests for memory.
    fn first_run(
        kind: Kind,
        step: &GuidedStep,
        [latents, timestep]: [&Tensor; 2],
        denoiser: &dyn Denoiser,
        trace: Option<&mut Trace>,
    ) -> Result<Self> {
        // Copies, so that nobody else writes to them or frees them.
        let (latents, timestep) = (kiln_ops::copy(latents)?, kiln_ops::copy(timestep)?);
        let inputs = StepInputs { latents, timestep, others: step.inputs.copy()? };
        let predictions = predictions(&inputs.others, inputs.latents.dim(0)?);
        let output = Tensor::cat(&vec![&inputs.latents; predictions], 0)?.zeros_like()?;
        let device = inputs.latents.device();
        let eager = || inputs.run(denoiser, step.dtype, Some(&output)).map(drop);
        let (result, recording) = Recording::first_run(device, || trace_into(trace, device, eager))?;
        result?;
        Ok(Self { kind, inputs, version: step.version.clone(), output, dtype: step.dtype, recording })
    }

    /// Writes the inputs of `step`, which has the same shapes.
    fn write(&mut self, step: &GuidedStep, [latents, timestep]: [&Tensor; 2]) -> Result<()> {
        step.inputs.write_to(&self.inputs.others, |access| access == Access::State)?;
        self.inputs.latents.slice_set(latents, 0, 0)?;
        self.inputs.timestep.slice_set(timestep, 0, 0)?;
        if !Arc::ptr_eq(&self.version, &step.version) {
            step.inputs.write_to(&self.inputs.others, |access| access != Access::State)?;
            self.version = step.version.clone();
        }
        Ok(())
    }

    /// Writes what the step has stored to the tensors of `step`.
    fn read(&self, step: &GuidedStep) -> Result<()> {
        Ok(self.inputs.others.write_to(&step.inputs, |access| access == Access::Output)?)
    }

    fn graph(&self) -> Option<&Graph> {
        self.recording.graph()
    }

    /// Bytes of its inputs and its output.
    fn bytes(&self) -> usize {
        let of = |tensor: &Tensor| tensor.elem_count() * tensor.dtype().size_in_bytes();
        let inputs = self.inputs.others.tensors().map(of).sum::<usize>();
        inputs + of(&self.inputs.latents) + of(&self.output)
    }

    /// Runs the step into `output`, recorded where that is possible and no trace is asked for. `others` are steps whose memory
    /// it may use; where that is too small for it, it gets memory that is large enough for them, and they are recorded again.
    fn step(
        &mut self,
        denoiser: &dyn Denoiser,
        device: &Device,
        others: &mut Vec<Self>,
        trace: Option<&mut Trace>,
    ) -> Result<()> {
        let eager = || self.inputs.run(denoiser, self.dtype, Some(&self.output)).map(drop);
        if let Some(prepared) = self.recording.prepared() {
            if !others.iter().filter_map(Self::graph).any(|graph| graph.has_memory_for(prepared)) {
                others.retain(|other| other.graph().is_none());
            }
            let shared: Vec<&Graph> = others.iter().filter_map(Self::graph).collect();
            self.recording.capture("a step", device, &shared, eager);
        }
        match (&mut self.recording, trace) {
            (Recording::Captured(graph), None) => Ok(graph.replay()?),
            (Recording::Captured(graph), trace) => {
                for _ in 0..REPLAYS_AHEAD {
                    graph.replay()?;
                }
                trace_into(trace, device, eager)
            }
            (Recording::Prepared(_) | Recording::Eager, trace) => trace_into(trace, device, eager),
        }
    }
}

impl StepInputs {
    fn run(&self, denoiser: &dyn Denoiser, dtype: DType, out: Option<&Tensor>) -> Result<Tensor> {
        guided_step(denoiser, &self.latents, &self.timestep, &self.others, dtype, out)
    }
}
