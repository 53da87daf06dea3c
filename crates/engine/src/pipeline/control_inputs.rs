//! The control networks of a group of images: their embedded images, and what they get at each evaluation.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_media::ValueRange;
use kiln_request::{Control, ControlMode, ControlUse, is_active, scales};
use kiln_scheduler::Convention;
use kiln_unet::{ControlHint, ControlInput};

use crate::component::WeightResidency;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pipeline::batch::Batch;
use crate::pipeline::conditioning::step_of;

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
    /// The embedded images, `(n, h, w, c)` in the network's type.
    hint: Tensor,
    scales: Arc<[f32]>,
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
    /// Whether it acts on the conditional rows alone where there are others.
    fn is_conditional_only(&self) -> bool {
        self.using.guess || self.using.mode == ControlMode::Control
    }
}

impl ControlInputs {
    fn active(&self, At { call, calls }: At) -> impl Iterator<Item = &GroupControl> {
        let step = step_of(call, calls, self.steps);
        let is_active = move |control: &&GroupControl| {
            is_active(&control.using, self.convention, (call, calls), (step, self.steps))
        };
        self.controls.iter().filter(is_active)
    }

    /// What the networks get at an evaluation with `unconditional` rows before `conditional` ones for each image.
    pub(crate) fn at(&self, at: At, (unconditional, conditional): (usize, usize)) -> Result<Vec<ControlInput>> {
        let input = |control: &GroupControl| -> Result<ControlInput> {
            let rows = if control.is_conditional_only() { conditional } else { unconditional + conditional };
            let hint = match rows {
                1 => control.hint.clone(),
                rows => Tensor::cat(&vec![&control.hint; rows], 0)?,
            };
            Ok(ControlInput { network: control.network, hint, scales: control.scales.clone() })
        };
        self.active(at).map(input).collect()
    }

    /// Whether other networks act at an evaluation than at the one before.
    pub(crate) fn changes_at(&self, at: At) -> bool {
        let networks = |at: At| self.active(at).map(|control| control.hint.id()).collect::<Vec<_>>();
        at.call > 0 && networks(at) != networks(At { call: at.call - 1, ..at })
    }

    /// What two groups have in common where their rows fit into one call: networks, factors and rows.
    pub(crate) fn form(&self, at: At) -> Vec<u64> {
        let of = |control: &GroupControl| {
            let scales = control.scales.iter().map(|scale| u64::from(scale.to_bits()));
            let head = [control.network as u64, u64::from(control.is_conditional_only()), control.scales.len() as u64];
            head.into_iter().chain(scales).collect::<Vec<_>>()
        };
        self.active(at).flat_map(of).collect()
    }
}

impl Engine {
    /// Embeds the control images of a batch. Each image of the batch has the bits that it has alone: they are embedded one by
    /// one.
    pub(crate) fn embed_controls(&mut self, batch: &Batch<'_>) -> Result<ControlInputs> {
        let (job, device, dtype) = (batch.job(), &self.device, self.dtype);
        let one = |(i, control): (usize, &Control)| {
            let missing = || Error::value("controls", control.using.net.display(), "a control network that is open");
            let network = self.controls.place(control).ok_or_else(missing)?;
            let loaded = self.controls.get(network).ok_or_else(missing)?;
            loaded.hint_component.enter(&WeightResidency::Whole)?;
            let embedded = loaded.hint_component.run(|| embed_images(&loaded.hint, batch, i, (device, dtype)));
            loaded.hint_component.leave();
            let scales = scales(&control.using, loaded.net.skips().len() + 1);
            Ok(GroupControl { network, using: control.using.clone(), hint: embedded?, scales })
        };
        let controls = job.controls.iter().enumerate().map(one).collect::<Result<Vec<_>>>()?;
        Ok(ControlInputs { controls, convention: job.sampling.convention, steps: job.steps })
    }
}

/// The embedded control images number `i` of the jobs of a batch.
fn embed_images(hint: &ControlHint, batch: &Batch<'_>, i: usize, (device, dtype): (&Device, DType)) -> Result<Tensor> {
    let mut known: Vec<(&Control, Tensor)> = Vec::new();
    let mut rows = Vec::with_capacity(batch.len());
    for (job, _) in batch.images() {
        let missing = || {
            let found = format!("{} controls", job.controls.len());
            Error::value("controls", found, "as many as the other images of the batch have")
        };
        let control = job.controls.get(i).ok_or_else(missing)?;
        let same = known.iter().find(|(other, _)| Arc::ptr_eq(&other.image, &control.image));
        let embedded = match same {
            Some((_, embedded)) => embedded.clone(),
            None => {
                let (width, height) = control.image.size();
                if (width, height) != (job.width, job.height) {
                    let expected = format!("{}x{}, the size of the job's images", job.width, job.height);
                    return Err(Error::value("controls", format!("an image of {width}x{height}"), expected));
                }
                let planes = control.image.to_planes(ValueRange::ZeroToOne);
                let pixels = Tensor::from_vec(planes, (1, 3, height, width), &Device::Cpu)?;
                let pixels = pixels.to_device(device)?.to_dtype(dtype)?;
                let embedded = hint.forward(&pixels)?;
                known.push((control, embedded.clone()));
                embedded
            }
        };
        rows.push(embedded);
    }
    Ok(match &rows[..] {
        [one] => one.clone(),
        all => Tensor::cat(all, 0)?,
    })
}
