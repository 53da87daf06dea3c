//! The denoiser as a sampler sees it: guided, one call for conditional and unconditional halves.

use candle_core::{DType, Device, Tensor};
use kiln_nn::{Shadow, shadow};
use kiln_ops::graph::{Graph, Prepared, is_recordable, prepare};
use kiln_ops::trace::{Trace, record};
use kiln_unet::{AddedConditions, Conditioning, ConditioningShadow, Unet};

use crate::error::Result;

/// Runs of one size after which a step takes its usual time: on a card the first makes what libraries need, and the
/// second is recorded.
pub(crate) const RUNS_UNTIL_RECORDED: usize = 2;

/// Replays before a step is traced: work for the card of about as many steps while the host launches one operator by
/// operator, which takes it longer than the card needs for it. Otherwise the trace would show the card waiting.
const REPLAYS_AHEAD: usize = 4;

/// A U-Net with its conditions and its guidance.
pub(crate) struct GuidedUnet<'a> {
    unet: &'a Unet,
    recorded: &'a mut RecordedStep,
    constants: Constants,
    /// Whether the recorded step has these constants.
    written: bool,
    dtype: DType,
}

/// What stays the same from step to step, besides the weights.
struct Constants {
    /// The unconditional half first, where there is guidance.
    conditioning: Conditioning,
    /// Strength of the guidance `(1)` in f32, where there is any.
    cfg_scale: Option<Tensor>,
}

/// What a step reads besides the weights.
struct Inputs {
    /// `(n, c, h, w)` in f32.
    latents: Tensor,
    /// `(1)` in f32.
    timestep: Tensor,
    constants: Constants,
}

/// The step of one size and one set of weights as it was recorded on a card. Another size takes its place.
#[derive(Default)]
pub(crate) struct RecordedStep(Option<Recorded>);

struct Recorded {
    /// The tensors that the recorded launches read.
    inputs: Inputs,
    /// `(n, c, h, w)` in f32.
    output: Tensor,
    dtype: DType,
    state: State,
}

enum State {
    /// Ran once, with all that libraries make on their first use.
    Warm(Prepared),
    Replayed(Graph),
    /// Something in it cannot be recorded.
    Eager,
}

impl<'a> GuidedUnet<'a> {
    /// A step with `conditioning`, the unconditional half first where there is guidance, in `dtype`. `recorded` belongs
    /// to this network with these weights.
    pub(crate) fn new(
        unet: &'a Unet,
        recorded: &'a mut RecordedStep,
        conditioning: &Conditioning,
        cfg_scale: Option<f64>,
        dtype: DType,
    ) -> Result<Self> {
        let constants = Constants::new(conditioning, cfg_scale, dtype)?;
        Ok(Self { unet, recorded, constants, written: false, dtype })
    }

    /// The same step with other conditions or another guidance.
    pub(crate) fn condition(&mut self, conditioning: &Conditioning, cfg_scale: Option<f64>) -> Result<()> {
        self.constants = Constants::new(conditioning, cfg_scale, self.dtype)?;
        self.written = false;
        Ok(())
    }

    /// The model's output for scaled latents `(n, c, h, w)`, in f32: `(2 n, ..)` where there are conditions for both
    /// halves and no strength.
    pub(crate) fn forward(&mut self, x: &Tensor, timestep: f64) -> Result<Tensor> {
        self.step(x, timestep, None)
    }

    /// The same, and how long each operator took. On a card they are launched one by one, whatever is recorded.
    pub(crate) fn traced(&mut self, x: &Tensor, timestep: f64) -> Result<(Tensor, Trace)> {
        let mut trace = Trace::default();
        Ok((self.step(x, timestep, Some(&mut trace))?, trace))
    }

    fn step(&mut self, x: &Tensor, timestep: f64, trace: Option<&mut Trace>) -> Result<Tensor> {
        let (latents, device) = (x.to_dtype(DType::F32)?.contiguous()?, x.device());
        // Filled by the card: a copy to it would queue behind those of streamed weights.
        let timestep = Tensor::full(timestep as f32, 1, device)?;
        // Weights that are streamed are elsewhere before they are used: the host must be there to order that.
        if !is_recordable(device) || self.unet.segments().is_streamed() {
            let run = || run(self.unet, &latents, &timestep, &self.constants, self.dtype, None);
            return trace_into(trace, device, run);
        }
        let fits = |recorded: &Recorded| {
            recorded.dtype == self.dtype
                && recorded.inputs.latents.dims() == latents.dims()
                && recorded.inputs.constants.same_shapes(&self.constants)
        };
        let recorded = match self.recorded.0.take().filter(fits) {
            Some(mut recorded) => {
                recorded.inputs.latents.slice_set(&latents, 0, 0)?;
                recorded.inputs.timestep.slice_set(&timestep, 0, 0)?;
                if !self.written {
                    recorded.inputs.constants.write(&self.constants)?;
                }
                recorded.step(self.unet, device, trace)?;
                recorded
            }
            None => {
                // Copies, so that nobody else writes to them or frees them.
                let constants = self.constants.copy()?;
                let (latents, timestep) = (latents.force_contiguous()?, timestep.force_contiguous()?);
                let inputs = Inputs { latents, timestep, constants };
                // As it will be recorded: with the same requests for memory.
                let output = inputs.latents.zeros_like()?;
                let eager = || inputs.run(self.unet, self.dtype, Some(&output)).map(drop);
                let (result, prepared) = prepare(device, || trace_into(trace, device, eager));
                result?;
                Recorded { inputs, output, dtype: self.dtype, state: State::Warm(prepared) }
            }
        };
        self.written = true;
        let output = recorded.output.force_contiguous()?;
        self.recorded.0 = Some(recorded);
        Ok(output)
    }
}

impl RecordedStep {
    /// Does `run`, which has nothing to do with the step, and lends it the step's memory, which is of no use to anybody
    /// between two steps. What `run` makes on the card must be gone at its end.
    pub(crate) fn lend<T>(&self, run: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(Recorded { state: State::Replayed(graph), .. }) => graph.lend(run),
            _ => run(),
        }
    }
}

impl Recorded {
    /// Runs the step into `output`, recorded where that is possible and no trace is asked for.
    fn step(&mut self, unet: &Unet, device: &Device, trace: Option<&mut Trace>) -> Result<()> {
        let eager = || self.inputs.run(unet, self.dtype, Some(&self.output)).map(drop);
        if let State::Warm(prepared) = &self.state {
            self.state = match Graph::record(device, prepared, eager) {
                Ok(graph) => {
                    tracing::info!(bytes = graph.bytes(), "recorded a step");
                    State::Replayed(graph)
                }
                Err(error) => {
                    tracing::warn!("a step is launched kernel by kernel, since it could not be recorded: {error}");
                    State::Eager
                }
            };
        }
        match (&mut self.state, trace) {
            (State::Replayed(graph), None) => Ok(graph.replay()?),
            (State::Replayed(graph), trace) => {
                for _ in 0..REPLAYS_AHEAD {
                    graph.replay()?;
                }
                trace_into(trace, device, eager)
            }
            (State::Warm(_) | State::Eager, trace) => trace_into(trace, device, eager),
        }
    }
}

impl Inputs {
    fn run(&self, unet: &Unet, dtype: DType, out: Option<&Tensor>) -> Result<Tensor> {
        run(unet, &self.latents, &self.timestep, &self.constants, dtype, out)
    }
}

impl Constants {
    fn new(conditioning: &Conditioning, cfg_scale: Option<f64>, dtype: DType) -> Result<Self> {
        let device = conditioning.context.device();
        let cfg_scale = cfg_scale.map(|scale| Tensor::new(&[scale as f32], device)).transpose()?;
        Ok(Self { conditioning: conditioning.to_dtype(dtype)?, cfg_scale })
    }

    /// All tensors, in one order.
    fn tensors(&self) -> Vec<&Tensor> {
        let Conditioning { context, added } = &self.conditioning;
        let mut tensors = vec![context];
        tensors.extend(&self.cfg_scale);
        tensors.extend(added.iter().flat_map(|added| [&added.text_embeds, &added.time_ids]));
        tensors
    }

    fn same_shapes(&self, other: &Self) -> bool {
        let shapes = |all: &Self| all.tensors().iter().map(|tensor| tensor.dims().to_vec()).collect::<Vec<_>>();
        self.cfg_scale.is_some() == other.cfg_scale.is_some() && shapes(self) == shapes(other)
    }

    /// Writes the values of `other`, which has the same shapes.
    fn write(&self, other: &Self) -> Result<()> {
        for (to, from) in self.tensors().into_iter().zip(other.tensors()) {
            to.slice_set(&from.contiguous()?, 0, 0)?;
        }
        Ok(())
    }

    fn copy(&self) -> Result<Self> {
        let Conditioning { context, added } = &self.conditioning;
        let added = added.as_ref().map(|added| -> Result<_> {
            let text_embeds = added.text_embeds.force_contiguous()?;
            Ok(AddedConditions { text_embeds, time_ids: added.time_ids.force_contiguous()? })
        });
        let conditioning = Conditioning { context: context.force_contiguous()?, added: added.transpose()? };
        let cfg_scale = self.cfg_scale.as_ref().map(Tensor::force_contiguous).transpose()?;
        Ok(Self { conditioning, cfg_scale })
    }
}

/// Does `run`, and writes to `trace`, where there is one, how long its operators took.
fn trace_into<T>(trace: Option<&mut Trace>, device: &Device, run: impl FnOnce() -> Result<T>) -> Result<T> {
    let Some(trace) = trace else { return run() };
    let result;
    (result, *trace) = record(device, run)?;
    Ok(result)
}

/// One guided step in f32: `uncond + cfg_scale (cond - uncond)` of the network's output, or that output, of both halves
/// where there are conditions for both.
fn run(
    unet: &Unet,
    latents: &Tensor,
    timestep: &Tensor,
    constants: &Constants,
    dtype: DType,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let x = latents.to_dtype(dtype)?;
    let Some(scale) = &constants.cfg_scale else {
        // Conditions for both halves: what guidance makes of them is decided outside of the step.
        let both = constants.conditioning.context.dim(0)? > x.dim(0)?;
        let x = if both { Tensor::cat(&[&x, &x], 0)? } else { x };
        let y = unet.forward(&x, timestep, &constants.conditioning)?.to_dtype(DType::F32)?;
        let Some(out) = out else { return Ok(y) };
        out.slice_set(&y, 0, 0)?;
        return Ok(out.clone());
    };
    let both = unet.forward(&Tensor::cat(&[&x, &x], 0)?, timestep, &constants.conditioning)?;
    Ok(kiln_ops::guidance(&both, scale, out)?)
}

/// [`run`] for shapes.
pub(crate) fn shadow(
    unet: &Unet,
    latents: &Shadow,
    conditioning: &ConditioningShadow,
    guided: bool,
    dtype: DType,
) -> Shadow {
    let timestep = latents.another(&[1]);
    let x = latents.to_dtype(dtype);
    if !guided {
        return unet.shadow(&x, &timestep, conditioning).to_dtype(DType::F32);
    }
    let both = unet.shadow(&shadow::cat(&[&x, &x]), &timestep, conditioning);
    shadow::guidance(&both)
}

/// How many values of a tensor are infinite or no numbers.
pub(crate) fn count_not_finite(tensor: &Tensor) -> Result<usize> {
    let values: Vec<f32> = tensor.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    Ok(values.iter().filter(|value| !value.is_finite()).count())
}
