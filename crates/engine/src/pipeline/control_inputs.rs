//! The control networks of a group of images: their embedded images, and what they get at each evaluation.

use std::sync::Arc;

use candle_core::Tensor;
use kiln_network::{ControlImage, ControlRole, ControlRows, ControlSpec, Denoiser, Inputs};
use kiln_request::{
    Control, ControlMode, ControlUse, Evaluation, PromptSteps, adapter_scales, is_active, is_adapter_active, scales,
};
use kiln_scheduler::Convention;
use kiln_weights::Placement;

use crate::component::WeightResidency;
use crate::error::{Error, Result};
use crate::loaded_controls::{LoadedControl, type_number};
use crate::loaded_model::LoadedModel;
use crate::pipeline::batch::Batch;
use crate::pipeline::control_images::{ControlLatents, embed_images};

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
    role: ControlRole,
    rows: ControlRows,
    /// Whether its network takes several images in one call.
    joins: bool,
    /// The number of its image's type.
    kind: Option<usize>,
    /// The factors, and those without the weight.
    scales: [Arc<[f32]>; 2],
    /// The network's results for the images, one row for each image, in its type: embedded images or latents, or feature maps
    /// with their factors.
    made: Vec<Tensor>,
}

/// An evaluation of a group.
#[derive(Clone, Copy)]
pub(crate) struct At {
    /// Its number, from 0.
    pub(crate) call: usize,
    /// All evaluations of the group.
    pub(crate) calls: usize,
    /// The denoiser's timestep.
    pub(crate) timestep: f64,
    /// The timestep of the evaluation before; that of this one for the first.
    pub(crate) before: f64,
}

impl At {
    /// The evaluation before.
    pub(super) fn previous(self) -> Self {
        Self { call: self.call.saturating_sub(1), timestep: self.before, ..self }
    }

    /// For what acts in a part of the evaluations, of a sampler with so many steps.
    pub(super) fn evaluation(self, steps: usize) -> Evaluation {
        let Self { call, calls, timestep, .. } = self;
        Evaluation { call, calls, step: PromptSteps::Sampler(steps).of_call(call, calls), steps, timestep }
    }
}

impl GroupControl {
    /// The control `using` of a network with the properties `spec`, whose results for the images are `made`.
    fn new(network: usize, spec: &ControlSpec, using: &ControlUse, made: Vec<Tensor>) -> Result<Self> {
        let is_conditional = spec.rows == ControlRows::Conditional;
        // Means over all pixels have one factor, whatever the guess mode is (diffusers: `global_pool_conditions`).
        let own = ControlUse { guess: using.guess && !is_conditional, ..using.clone() };
        let is_conditional_only = own.guess || own.mode == ControlMode::Control;
        let rows = if is_conditional_only { ControlRows::Conditional } else { spec.rows };
        // A network without weak early layers has one factor in every mode.
        let mode = if spec.modes.prompt { own.mode } else { ControlMode::Balanced };
        let plain = ControlUse { weight: 1.0, mode, ..own };
        let weighed = ControlUse { weight: using.weight, ..plain.clone() };
        let (scales, made) = match spec.role {
            ControlRole::Steps => ([scales(&weighed, spec.additions), scales(&plain, spec.additions)], made),
            ControlRole::Features => {
                let factors = adapter_scales(using, spec.additions);
                let weighed = |(map, &factor): (Tensor, &f32)| match factor {
                    1.0 => Ok(map),
                    factor => Ok((map * f64::from(factor))?),
                };
                let made = made.into_iter().zip(factors.iter()).map(weighed).collect::<Result<_>>()?;
                ([factors.clone(), factors], made)
            }
        };
        let kind = spec.types.zip(using.kind()).and_then(|(types, kind)| type_number(types, kind));
        let joins = spec.types.is_some_and(|types| types.joins);
        Ok(Self { network, using: using.clone(), role: spec.role, rows, joins, kind, scales, made })
    }

    /// Its input of a call with `unconditional` rows before `conditional` ones for each image.
    fn image(&self, unconditional: usize, conditional: usize) -> Result<ControlImage> {
        let rows = match self.rows {
            ControlRows::All => unconditional + conditional,
            ControlRows::Conditional => conditional,
            // The rows in front take the results in turn.
            ControlRows::Repeated if unconditional.is_multiple_of(conditional.max(1)) => conditional,
            ControlRows::Repeated => unconditional + conditional,
        };
        let repeated = |made: &Tensor| match rows {
            1 => Ok(made.clone()),
            rows => Ok(Tensor::cat(&vec![made; rows], 0)?),
        };
        let [scales, plain] = self.scales.clone();
        let embedded = self.made.iter().map(repeated).collect::<Result<_>>()?;
        Ok(ControlImage { embedded, kind: self.kind, weight: self.using.weight as f32, scales, plain })
    }
}

impl ControlInputs {
    fn active(&self, at: At) -> impl Iterator<Item = &GroupControl> {
        let at = at.evaluation(self.steps);
        let is_active = move |control: &&GroupControl| {
            let rule = if control.role == ControlRole::Features { is_adapter_active } else { is_active };
            rule(&control.using, self.convention, at)
        };
        self.controls.iter().filter(is_active)
    }

    /// Adds the inputs of the networks of `denoiser` at an evaluation with `unconditional` rows before `conditional` ones for each
    /// image.
    pub(crate) fn add_to(
        &self,
        inputs: &mut Inputs,
        denoiser: &dyn Denoiser,
        at: At,
        (unconditional, conditional): (usize, usize),
    ) -> Result<()> {
        let mut nets: Vec<(&GroupControl, Vec<ControlImage>)> = Vec::new();
        let mut features: Option<(&GroupControl, ControlImage)> = None;
        for control in self.active(at) {
            let image = control.image(unconditional, conditional)?;
            match control.role {
                ControlRole::Steps => {
                    let rows = |image: &ControlImage| image.embedded.first().map(|made| made.dims().to_vec());
                    let joined = nets.iter_mut().find(|(other, images)| {
                        control.joins
                            && other.network == control.network
                            && images.first().and_then(rows) == rows(&image)
                    });
                    match joined {
                        Some((_, images)) => images.push(image),
                        None => nets.push((control, vec![image])),
                    }
                }
                ControlRole::Features => {
                    let is_part = control.rows == ControlRows::Conditional;
                    let made = image.embedded;
                    let made = if is_part { with_zeros(made, unconditional, conditional)? } else { made };
                    features = Some(match features {
                        None => (control, ControlImage { embedded: made, ..image }),
                        Some((first, others)) => {
                            (first, ControlImage { embedded: sum(others.embedded, made)?, ..others })
                        }
                    });
                }
            }
        }
        for (control, images) in nets.into_iter().chain(features.map(|(control, image)| (control, vec![image]))) {
            denoiser.add_control(inputs, control.network, images)?;
        }
        Ok(())
    }

    /// Whether other networks act at an evaluation than at the one before.
    pub(crate) fn changes_at(&self, at: At) -> bool {
        let networks = |at: At| {
            let ids = self.active(at).flat_map(|control| control.made.iter().map(Tensor::id));
            ids.collect::<Vec<_>>()
        };
        at.call > 0 && networks(at) != networks(at.previous())
    }
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
    if all.len() != more.len() || all.iter().zip(&more).any(|(a, b)| a.dims() != b.dims()) {
        let expected = "adapters with the same feature maps";
        return Err(Error::value("controls", "T2I-Adapters of different forms", expected));
    }
    all.into_iter().zip(more).map(|(a, b)| Ok((a + b)?)).collect()
}

impl LoadedModel {
    /// Has the control networks of a batch's pass see their control images; `latents` are those of networks that take latents. Each
    /// image of the batch has the bits that it has alone: they are seen one by one.
    pub(crate) fn embed_controls(&self, batch: &Batch<'_>, mut latents: ControlLatents) -> Result<ControlInputs> {
        let (job, Placement { device, dtype, .. }) = (batch.job(), self.component.placement());
        let one = |(i, control): (usize, &Control)| {
            let (network, loaded) = self.control(control)?;
            let LoadedControl { model, spec, image_component, .. } = loaded;
            let made = match latents.take(i) {
                Some(latents) => vec![latents.to_device(device)?.to_dtype(*dtype)?],
                None => {
                    image_component.enter(&WeightResidency::Whole)?;
                    let made = image_component.run(|| embed_images((&**model, spec), batch, i, (device, *dtype)));
                    image_component.leave();
                    made?
                }
            };
            GroupControl::new(network, spec, &control.using, made)
        };
        let acts = |(_, control): &(usize, &Control)| control.using.passes.acts(job.is_second_pass());
        let controls = job.controls.iter().enumerate().filter(acts).map(one).collect::<Result<Vec<_>>>()?;
        Ok(ControlInputs { controls, convention: job.sampling.convention, steps: job.steps })
    }

    /// The network of a control, with its place.
    pub(crate) fn control(&self, control: &Control) -> Result<(usize, &LoadedControl)> {
        let missing = || Error::value("controls", control.using.net.display(), "a control network that is open");
        let network = self.controls.place(control).ok_or_else(missing)?;
        Ok((network, self.controls.get(network).ok_or_else(missing)?))
    }
}
