//! The control networks of a group of images: their embedded images, and what they get at each evaluation.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_network::Inputs;
use kiln_request::{
    Control, ControlMode, ControlUse, PromptSteps, adapter_scales, is_active, is_adapter_active, scales,
};
use kiln_scheduler::Convention;
use kiln_unet::{ControlInput, ControlKinds, ControlModel};
use kiln_weights::Placement;

use crate::component::WeightResidency;
use crate::error::{Error, Result};
use crate::loaded_model::LoadedModel;
use crate::pipeline::batch::Batch;

/// The controls of a group.
#[derive(Default)]
pub struct ControlInputs {
    controls: Vec<GroupControl>,
    convention: Convention,
    /// Steps of the sampler.
    steps: usize,
}

struct GroupControl {
    /// The place of its network.
    network: usize,
    using: ControlUse,
    role: Role,
    /// The network's results for the images, `(n, h, w, c)` each, in its type: a ControlNet's embedded image, or an adapter's
    /// feature maps with their factors.
    made: Vec<Tensor>,
}

/// The role of a control in a step.
enum Role {
    /// Residuals of a ControlNet with these factors.
    Net { scales: Arc<[f32]>, is_conditional_only: bool, kind: Option<UnionImage> },
    /// Feature maps.
    Adapter,
}

/// The image of a Union network.
struct UnionImage {
    /// The number of its type, and the number of all types.
    number: usize,
    types: usize,
    /// The factors of the residuals where the network has several images, which have the weights then.
    plain: Arc<[f32]>,
}

/// An evaluation of a group.
#[derive(Clone, Copy)]
pub(crate) struct At {
    /// Its number, from 0.
    pub(crate) call: usize,
    /// All evaluations of the group.
    pub(crate) calls: usize,
}

impl GroupControl {
    /// Whether it acts on the conditional rows alone, if there are others.
    fn is_conditional_only(&self) -> bool {
        match self.role {
            Role::Net { is_conditional_only, .. } => is_conditional_only,
            Role::Adapter => self.using.mode == ControlMode::Control,
        }
    }

    /// Its result for `rows` rows of each image.
    fn rows(&self, rows: usize) -> Result<Vec<Tensor>> {
        let repeated = |made: &Tensor| match rows {
            1 => Ok(made.clone()),
            rows => Ok(Tensor::cat(&vec![made; rows], 0)?),
        };
        self.made.iter().map(repeated).collect()
    }
}

impl ControlInputs {
    fn active(&self, At { call, calls }: At) -> impl Iterator<Item = &GroupControl> {
        let step = PromptSteps::Sampler(self.steps).of_call(call, calls);
        let is_active = move |control: &&GroupControl| {
            let rule = if matches!(control.role, Role::Adapter) { is_adapter_active } else { is_active };
            rule(&control.using, self.convention, (call, calls), (step, self.steps))
        };
        self.controls.iter().filter(is_active)
    }

    /// Adds the inputs of the networks at an evaluation with `unconditional` rows before `conditional` ones for each image.
    pub(crate) fn add_to(
        &self,
        inputs: &mut Inputs,
        at: At,
        (unconditional, conditional): (usize, usize),
    ) -> Result<()> {
        let (mut nets, mut features) = (Vec::new(), Vec::new());
        for control in self.active(at) {
            let is_conditional_only = control.is_conditional_only();
            let rows = if is_conditional_only { conditional } else { unconditional + conditional };
            let made = control.rows(rows)?;
            match &control.role {
                Role::Net { scales, kind, .. } => {
                    let input = (control.network, made, scales.clone());
                    add_net(&mut nets, input, kind.as_ref(), control.using.weight as f32)?;
                }
                Role::Adapter => {
                    let all = if is_conditional_only { with_zeros(made, unconditional, conditional)? } else { made };
                    features = sum(features, all)?;
                }
            }
        }
        nets.into_iter().for_each(|net| net.add_to(inputs));
        ControlInput::add_features(features, inputs);
        Ok(())
    }

    /// Whether other networks act at an evaluation than at the one before.
    pub(crate) fn changes_at(&self, at: At) -> bool {
        let networks = |at: At| {
            let ids = self.active(at).flat_map(|control| control.made.iter().map(Tensor::id));
            ids.collect::<Vec<_>>()
        };
        at.call > 0 && networks(at) != networks(At { call: at.call - 1, ..at })
    }
}

/// Adds the input of a ControlNet. A Union network with several images of as many rows runs once for all of them.
fn add_net(
    inputs: &mut Vec<ControlInput>,
    (network, made, scales): (usize, Vec<Tensor>, Arc<[f32]>),
    kind: Option<&UnionImage>,
    weight: f32,
) -> Result<()> {
    let Some(UnionImage { number, types, plain }) = kind else {
        inputs.push(ControlInput { network, hints: made, kinds: None, scales });
        return Ok(());
    };
    let flags = |images: &[(usize, f32)], device: &Device| -> Result<Tensor> {
        let flag = |kind: usize| if images.iter().any(|&(number, _)| number == kind) { 1.0f32 } else { 0.0 };
        Ok(Tensor::from_vec((0..*types).map(flag).collect::<Vec<_>>(), *types, &Device::Cpu)?.to_device(device)?)
    };
    let rows = |hints: &[Tensor]| hints.first().map(|hint| hint.dims().to_vec());
    let same = inputs.iter_mut().find(|input| input.network == network && rows(&input.hints) == rows(&made));
    match same {
        Some(ControlInput { hints, kinds: Some(kinds), scales, .. }) => {
            kinds.images.push((*number, weight));
            kinds.flags = flags(&kinds.images, kinds.flags.device())?;
            hints.extend(made);
            *scales = plain.clone();
        }
        _ => {
            let images = vec![(*number, weight)];
            let device = made.first().map_or(Device::Cpu, |hint| hint.device().clone());
            let kinds = Some(ControlKinds { flags: flags(&images, &device)?, images });
            inputs.push(ControlInput { network, hints: made, kinds, scales });
        }
    }
    Ok(())
}

/// Feature maps of the conditional rows, with zeros for the unconditional ones before them.
fn with_zeros(made: Vec<Tensor>, unconditional: usize, conditional: usize) -> Result<Vec<Tensor>> {
    let of = |made: Tensor| -> Result<Tensor> {
        let images = made.dim(0)? / conditional.max(1);
        let zeros = made.narrow(0, 0, images)?.zeros_like()?;
        let mut parts = vec![&zeros; unconditional];
        parts.push(&made);
        Ok(Tensor::cat(&parts, 0)?)
    };
    made.into_iter().map(of).collect()
}

/// The sums of two adapters' feature maps.
fn sum(all: Vec<Tensor>, more: Vec<Tensor>) -> Result<Vec<Tensor>> {
    if all.is_empty() {
        return Ok(more);
    }
    if all.len() != more.len() || all.iter().zip(&more).any(|(a, b)| a.dims() != b.dims()) {
        let expected = "adapters with the same feature maps";
        return Err(Error::value("controls", "T2I-Adapters of different forms", expected));
    }
    all.into_iter().zip(more).map(|(a, b)| Ok((a + b)?)).collect()
}

impl LoadedModel {
    /// Has the control networks of a batch's pass see their control images. Each image of the batch has the bits that it has alone: they
    /// are seen one by one.
    pub(crate) fn embed_controls(&self, batch: &Batch<'_>) -> Result<ControlInputs> {
        let (job, Placement { device, dtype, .. }) = (batch.job(), self.component.placement());
        let one = |(i, control): (usize, &Control)| {
            let missing = || Error::value("controls", control.using.net.display(), "a control network that is open");
            let network = self.controls.place(control).ok_or_else(missing)?;
            let loaded = self.controls.get(network).ok_or_else(missing)?;
            loaded.image_component.enter(&WeightResidency::Whole)?;
            let made = loaded.image_component.run(|| embed_images(&loaded.model, batch, i, (device, *dtype)));
            loaded.image_component.leave();
            let (made, role) = role(&loaded.model, &control.using, made?)?;
            Ok(GroupControl { network, using: control.using.clone(), role, made })
        };
        let acts = |(_, control): &(usize, &Control)| control.using.passes.acts(job.is_second_pass());
        let controls = job.controls.iter().enumerate().filter(acts).map(one).collect::<Result<Vec<_>>>()?;
        Ok(ControlInputs { controls, convention: job.sampling.convention, steps: job.steps })
    }
}

/// The role of a control in a step, with its network's result: an adapter's maps times their factors.
fn role(model: &ControlModel, using: &ControlUse, made: Vec<Tensor>) -> Result<(Vec<Tensor>, Role)> {
    let count = model.additions();
    if model.lllite().is_some() {
        let is_conditional_only = using.mode == ControlMode::Control;
        return Ok((made, Role::Net { scales: [using.weight as f32].into(), is_conditional_only, kind: None }));
    }
    if model.is_adapter() {
        let weighed = |(map, &factor): (Tensor, &f32)| match factor {
            1.0 => Ok(map),
            factor => Ok((map * f64::from(factor))?),
        };
        let factors = adapter_scales(using, count);
        let made = made.into_iter().zip(factors.iter()).map(weighed).collect::<Result<_>>()?;
        return Ok((made, Role::Adapter));
    }
    // Means over all pixels have one factor, whatever the guess mode is (diffusers: `global_pool_conditions`).
    let is_pooled = model.is_conditional_only();
    let using = ControlUse { guess: using.guess && !is_pooled, ..using.clone() };
    let kind = model.types().zip(using.kind()).map(|(types, kind)| UnionImage {
        number: kind.number(),
        types,
        plain: scales(&ControlUse { weight: 1.0, ..using.clone() }, count),
    });
    let is_conditional_only = is_pooled || using.guess || using.mode == ControlMode::Control;
    Ok((made, Role::Net { scales: scales(&using, count), is_conditional_only, kind }))
}

/// A network's result for the control images number `i` of the jobs of a batch.
fn embed_images(
    model: &ControlModel,
    batch: &Batch<'_>,
    i: usize,
    (device, dtype): (&Device, DType),
) -> Result<Vec<Tensor>> {
    let mut known: Vec<(&Control, Vec<Tensor>)> = Vec::new();
    let mut rows: Vec<Vec<Tensor>> = Vec::with_capacity(batch.len());
    for (job, _) in batch.images() {
        let missing = || {
            let found = format!("{} controls", job.controls.len());
            Error::value("controls", found, "as many as the other images of the batch have")
        };
        let control = job.controls.get(i).ok_or_else(missing)?;
        let is_same = |other: &Control| Arc::ptr_eq(&other.image, &control.image) && other.hole == control.hole;
        let made = match known.iter().find(|(other, _)| is_same(other)) {
            Some((_, made)) => made.clone(),
            None => {
                let made = model.embed(&pixels(model, control, (job.width, job.height), (device, dtype))?)?;
                known.push((control, made.clone()));
                made
            }
        };
        rows.push(made);
    }
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let joined = |k: usize| -> Result<Tensor> {
        let parts: Vec<&Tensor> = rows.iter().filter_map(|row| row.get(k)).collect();
        match &parts[..] {
            [one] => Ok((*one).clone()),
            all => Ok(Tensor::cat(all, 0)?),
        }
    };
    (0..first.len()).map(joined).collect()
}

/// A control image as a network takes it, `(1, c, h, w)`: a network for gray ones gets the luminance.
fn pixels(
    model: &ControlModel,
    control: &Control,
    size: (usize, usize),
    (device, dtype): (&Device, DType),
) -> Result<Tensor> {
    let (width, height) = control.image.size();
    if (width, height) != size {
        let expected = format!("{}x{}, the size of the job's images", size.0, size.1);
        return Err(Error::value("controls", format!("an image of {width}x{height}"), expected));
    }
    let channels = model.image_channels();
    let planes = if channels == 1 { control.luminance() } else { control.planes()? };
    let pixels = Tensor::from_vec(planes, (1, channels, height, width), &Device::Cpu)?;
    Ok(pixels.to_device(device)?.to_dtype(dtype)?)
}
