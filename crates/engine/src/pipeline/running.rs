//! The sampler loop: batches that are denoised together, each at its own place of its own schedule.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::{DType, Tensor};
use kiln_media::Gray8Image;
use kiln_ops::trace::Trace;
use kiln_request::{Job, LoraUse};
use kiln_scheduler::{Evaluation, ModelOutput, NoiseSource, Schedule, Stepper};
use kiln_unet::Conditioning;

use crate::error::{Error, Result};
use crate::pipeline::call_rows::{interleaved, split, timesteps};
use crate::pipeline::conditioning::{Conditions, step_of};
use crate::pipeline::control_inputs::{At, ControlInputs};
use crate::pipeline::denoiser::Denoiser;
use crate::pipeline::guidance::{EvaluationGuidance, Guidance};
use crate::pipeline::kept::Kept;
use crate::pipeline::network_parts::{NetworkForm, NetworkParts};
use crate::pipeline::prompt_inputs::PromptInputs;
use crate::pipeline::recorded::RecordedStep;
use crate::pipeline::start::Start;
use crate::pipeline::step::GuidedStep;
use crate::pipeline::throttle::StepThrottle;
use crate::pipeline::turns::{Turn, Turns};
use crate::plan::{Pass, Workload};

/// Tells a group of a running batch from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId(u64);

/// Images at one place of one schedule: those of one batch. They come and go together.
pub struct Group {
    stepper: Stepper<Arc<Schedule>>,
    kept: Option<Kept>,
    /// Channels besides the latents that the denoiser takes, `(n, e, h, w)` in f32.
    extra: Option<Tensor>,
    /// `(n, c, h, w)` in f32 on the denoiser's device.
    latents: Tensor,
    noise: Box<dyn NoiseSource + Send>,
    /// Which denoiser makes which evaluations.
    turns: Turns,
    /// The control networks of the first denoiser.
    controls: ControlInputs,
    /// Its image prompts.
    prompts: PromptInputs,
    /// What is changed within the network.
    network: NetworkParts,
    /// Steps of the prompts' schedules.
    steps: usize,
    /// The guidance of the last evaluation; `None` before the first one.
    guided: Option<EvaluationGuidance>,
    /// What the last evaluation changed in the network; `None` before the first one.
    last_form: Option<NetworkForm>,
    /// Whether it sits out.
    paused: bool,
    /// Whether the clean image that the denoiser predicts is kept.
    keeps_prediction: bool,
    /// That of the last evaluation, `(n, c, h, w)`.
    prediction: Option<Tensor>,
}

impl Group {
    /// Images that begin with `start` and draw from `noise` from now on, for the steps of `schedule` from its start.
    ///
    /// # Errors
    /// [`Error::Candle`] where the latents have another rank.
    pub fn new(
        schedule: Arc<Schedule>,
        start: Start,
        noise: Box<dyn NoiseSource + Send>,
        conditions: Conditions,
        guidance: Guidance,
        steps: usize,
    ) -> Result<Self> {
        let evaluations = schedule.points().len() - schedule.start();
        let turn = Turn { denoiser: 0, evaluations, schedule: None, conditions, guidance };
        Self::of_turns(schedule, start, noise, vec![turn], steps)
    }

    /// The same with several turns, of which there is at least one. The first begins with the sampler of `schedule`.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub(crate) fn of_turns(
        schedule: Arc<Schedule>,
        start: Start,
        noise: Box<dyn NoiseSource + Send>,
        turns: Vec<Turn>,
        steps: usize,
    ) -> Result<Self> {
        let Start { latents, kept, extra } = start;
        let (_, c, h, w) = latents.dims4()?;
        let turns = Turns::new(turns, (c, h, w), latents.device())?;
        let (stepper, guided, prediction) = (Stepper::new(schedule), None, None);
        let (paused, keeps_prediction) = (false, false);
        let (controls, prompts) = (ControlInputs::default(), PromptInputs::default());
        let network = NetworkParts::default();
        let images = Self {
            stepper,
            kept,
            extra,
            latents,
            noise,
            turns,
            controls,
            prompts,
            network,
            steps,
            guided,
            last_form: None,
            paused,
            keeps_prediction,
            prediction,
        };
        Ok(images)
    }

    /// The same images with control networks.
    pub(crate) fn with_controls(self, controls: ControlInputs) -> Self {
        Self { controls, ..self }
    }

    /// The same images with image prompts.
    pub(crate) fn with_prompts(self, prompts: PromptInputs) -> Self {
        Self { prompts, ..self }
    }

    /// The same images by a network in which this is changed.
    pub(crate) fn with_network(self, network: NetworkParts) -> Self {
        Self { network, ..self }
    }

    /// How many images.
    fn images(&self) -> usize {
        self.latents.dims().first().copied().unwrap_or(0)
    }

    /// Evaluations that are done.
    pub(crate) fn done(&self) -> usize {
        self.turns.done()
    }

    /// Evaluations of the whole walk.
    pub(crate) fn evaluations(&self) -> usize {
        self.turns.evaluations()
    }

    /// Whether evaluations are left.
    fn is_running(&self) -> bool {
        self.done() < self.evaluations()
    }

    /// Whether evaluations are left, and it does not sit out.
    fn takes_part(&self) -> bool {
        self.is_running() && !self.paused
    }

    /// The latents as they are now, `(n, c, h, w)` in f32.
    pub fn latents(&self) -> &Tensor {
        &self.latents
    }

    /// The step of the prompts' schedules that the next evaluation belongs to, and its guidance.
    fn next(&self) -> (usize, EvaluationGuidance) {
        let call = self.done();
        let points = self.stepper.schedule().points();
        let timestep = points.get(self.stepper.index()).map_or(0.0, |point| point.timestep);
        (step_of(call, self.evaluations(), self.steps), self.turns.current().guidance.at(call, timestep))
    }

    /// The place of the next evaluation.
    fn at(&self) -> At {
        At { call: self.done(), calls: self.evaluations() }
    }

    /// Whether the next evaluation has other conditions, other controls or another guidance than the last one.
    fn changes(&self) -> bool {
        let (step, now) = self.next();
        let inputs_change = self.controls.changes_at(self.at()) || self.prompts.changes_at(self.at());
        let controls_change = self.turns.current().denoiser == 0 && inputs_change;
        let guidance_changes = self.guided.map(|last| last.of_step()) != Some(now.of_step());
        let network_changes = self.last_form != Some(self.network.form(now.rows(), now.timestep));
        guidance_changes
            || network_changes
            || self.turns.current().conditions.changes_at(step, now.rows())
            || controls_change
    }

    /// What two groups need to have in common for one call of the denoiser.
    fn form(&self) -> Form {
        let (_, now) = self.next();
        let Turn { denoiser, conditions, .. } = self.turns.current();
        Form {
            denoiser: *denoiser,
            latents: self.latents.dims().get(1..).unwrap_or_default().to_vec(),
            scale: now.within_step.map(f64::to_bits),
            conditions: conditions.form(now.rows(), self.images()),
            controls: if *denoiser == 0 { self.controls.form(self.at()) } else { Vec::new() },
            prompts: if *denoiser == 0 { self.prompts.form(self.at()) } else { Vec::new() },
            network: self.network.form(now.rows(), now.timestep),
        }
    }
}

/// See [`Group::form`].
#[derive(PartialEq)]
struct Form {
    denoiser: usize,
    latents: Vec<usize>,
    scale: Option<u64>,
    conditions: Vec<u64>,
    controls: Vec<u64>,
    prompts: Vec<u64>,
    network: NetworkForm,
}

/// One call of the denoiser for some groups.
struct Call {
    denoiser: usize,
    /// The groups, in the order of their rows.
    groups: Vec<GroupId>,
    step: GuidedStep,
}

/// Batches that are denoised together. Groups join and leave between evaluations; each has the bits that it has alone,
/// on the CPU.
///
/// A group alone is one call of the denoiser an evaluation, whose conditions are made once and stay. Groups that agree in
/// the size of their latents, in guidance and in the length of their texts share a call, in which every row has its own
/// timestep; others take turns. A group that is paused keeps its place and takes part in no evaluation.
#[derive(Default)]
pub struct RunningBatch {
    groups: Vec<(GroupId, Group)>,
    /// The work of each group.
    work: Vec<(GroupId, Workload)>,
    /// The groups whose images go through no further pass.
    passed: Vec<GroupId>,
    /// The LoRAs in the weights, which all groups have in common.
    loras: Vec<LoraUse>,
    /// The files of the control networks and IP-Adapters, which all groups have in common too.
    nets: Vec<PathBuf>,
    calls: Vec<Call>,
    /// Calls whose groups are all paused: they are as they were when the groups go on.
    parked: Vec<Call>,
    /// Keeps the host at most a step ahead of a GPU.
    pub(crate) throttle: StepThrottle,
    joined: u64,
}

impl RunningBatch {
    /// No groups yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many images there are.
    pub fn images(&self) -> usize {
        self.groups.iter().map(|(_, group)| group.images()).sum()
    }

    /// Whether there are no groups.
    pub fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// How many evaluations of a group are done, and how many there are in all.
    pub fn progress(&self, id: GroupId) -> Option<(usize, usize)> {
        self.group(id).map(|group| (group.done(), group.evaluations()))
    }

    /// Says which LoRAs and control networks the groups that join from now on have in common.
    pub(crate) fn begin(&mut self, job: &Job) {
        self.loras = job.loras.to_vec();
        self.nets = nets(job);
    }

    /// Whether the networks of `job` are those that all groups have in common.
    pub(crate) fn has_nets_of(&self, job: &Job) -> bool {
        self.nets == nets(job)
    }

    /// The LoRAs that all groups have in common.
    pub(crate) fn loras(&self) -> &[LoraUse] {
        &self.loras
    }

    /// The work of all groups that are not paused, as memory is planned for it; `None` where there is none.
    pub(crate) fn work(&self) -> Option<Workload> {
        let active = self.work.iter().filter(|(id, _)| !self.is_paused(*id));
        active.map(|(_, work)| *work).reduce(Workload::with)
    }

    /// Has the groups `active` take part in evaluations from now on, and no others. False where nothing changed.
    pub(crate) fn select(&mut self, active: &[GroupId]) -> bool {
        let mut changed = false;
        for (id, group) in &mut self.groups {
            let paused = !active.contains(id);
            changed |= std::mem::replace(&mut group.paused, paused) != paused;
        }
        changed
    }

    /// The work of a group.
    pub(crate) fn work_of(&self, id: GroupId) -> Option<Workload> {
        self.work.iter().find(|(known, _)| *known == id).map(|(_, work)| *work)
    }

    /// Says that the images of a group are decoded as they are, without a second pass.
    pub fn leave_out_second_pass(&mut self, id: GroupId) {
        if !self.has_passed(id) {
            self.passed.push(id);
        }
    }

    /// Whether the images of a group go through no further pass.
    pub(crate) fn has_passed(&self, id: GroupId) -> bool {
        self.passed.contains(&id)
    }

    /// The pass to which the next evaluations belong, as memory is planned for it.
    pub(crate) fn pass(&self) -> Pass {
        let is_second = |(id, group): &(GroupId, Group)| group.takes_part() && self.has_passed(*id);
        if self.groups.iter().any(is_second) { Pass::Second } else { Pass::First }
    }

    fn is_paused(&self, id: GroupId) -> bool {
        self.group(id).is_some_and(|group| group.paused)
    }

    /// Says whether the clean image that the denoiser predicts for a group is kept at its next evaluations, for
    /// [`Self::prediction`].
    pub fn keep_prediction(&mut self, id: GroupId, keep: bool) {
        if let Some((_, group)) = self.groups.iter_mut().find(|(known, _)| *known == id) {
            group.keeps_prediction = keep;
            group.prediction = group.prediction.take().filter(|_| keep);
        }
    }

    /// The clean images that the denoiser predicted for a group at its last evaluation, latents `(n, c, h, w)` in f32 on the
    /// denoiser's device. `None` before the first evaluation since [`Self::keep_prediction`].
    pub fn prediction(&self, id: GroupId) -> Option<&Tensor> {
        self.group(id)?.prediction.as_ref()
    }

    /// Adds a group, which takes part from the next evaluation on, with the work that memory is planned for.
    pub fn join(&mut self, group: Group, work: Option<Workload>) -> GroupId {
        self.joined += 1;
        let id = GroupId(self.joined);
        self.groups.push((id, group));
        self.work.extend(work.map(|work| (id, work)));
        id
    }

    /// Takes a group out, wherever it is on its way.
    pub(crate) fn take(&mut self, id: GroupId) -> Option<Group> {
        let place = self.groups.iter().position(|(known, _)| *known == id)?;
        self.calls.retain(|call| !call.groups.contains(&id));
        self.parked.retain(|call| !call.groups.contains(&id));
        self.work.retain(|(known, _)| *known != id);
        self.passed.retain(|known| *known != id);
        Some(self.groups.remove(place).1)
    }

    /// Drops a group, wherever it is on its way. False where there is none of this number.
    pub fn leave(&mut self, id: GroupId) -> bool {
        self.take(id).is_some()
    }

    /// The groups whose last evaluation is done.
    pub(crate) fn finished(&self) -> Vec<GroupId> {
        self.groups.iter().filter(|(_, group)| !group.is_running()).map(|(id, _)| *id).collect()
    }

    /// Takes out the group of this number.
    ///
    /// # Errors
    /// [`Error::Request`] where it has left, or never was there.
    pub fn finish(&mut self, id: GroupId) -> Result<Group> {
        self.take(id).ok_or_else(|| Error::value("group", id.0, "a group of this running batch"))
    }

    fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.iter().find(|(known, _)| *known == id).map(|(_, group)| group)
    }

    /// The numbers of the denoisers that make the groups' next evaluations, the largest first: a group goes from one to the next
    /// larger, so that none is evaluated twice by one call of [`Self::step_of`] for each.
    pub(crate) fn acting(&self) -> Vec<usize> {
        let running = self.groups.iter().filter(|(_, group)| group.takes_part());
        let numbers: BTreeSet<usize> = running.map(|(_, group)| group.turns.current().denoiser).collect();
        numbers.into_iter().rev().collect()
    }

    /// Evaluations until the denoiser of a group changes or the group is done, with the denoiser after that: of the group that is
    /// there first.
    pub(crate) fn until_next(&self) -> Option<(usize, Option<usize>)> {
        let running = self.groups.iter().filter(|(_, group)| group.takes_part());
        running.map(|(_, group)| group.turns.until_next()).min_by_key(|(left, _)| *left)
    }

    /// One evaluation of every group that is not done, by one denoiser for all. `recorded` belongs to the denoiser with its weights;
    /// the first call alone uses it. Where an error comes back, no group whose call failed has moved.
    ///
    /// # Errors
    /// Those of the denoiser and of the samplers.
    pub fn step(
        &mut self,
        denoiser: &dyn Denoiser,
        recorded: Option<&mut RecordedStep>,
        dtype: DType,
        trace: Option<&mut Trace>,
    ) -> Result<()> {
        self.step_of(0, denoiser, recorded, dtype, trace)
    }

    /// The same for the groups whose next evaluation the denoiser of this number makes.
    pub(crate) fn step_of(
        &mut self,
        number: usize,
        denoiser: &dyn Denoiser,
        mut recorded: Option<&mut RecordedStep>,
        dtype: DType,
        mut trace: Option<&mut Trace>,
    ) -> Result<()> {
        self.arrange(number, denoiser, dtype)?;
        for Call { groups, step, .. } in self.calls.iter().filter(|call| call.denoiser == number) {
            let mut members: Vec<&mut Group> =
                self.groups.iter_mut().filter(|(id, _)| groups.contains(id)).map(|(_, group)| group).collect();
            let evaluations =
                members.iter_mut().map(|group| group.evaluation()).collect::<Result<Vec<Evaluation>>>()?;
            let images: Vec<usize> = members.iter().map(|group| group.images()).collect();
            let timesteps = timesteps(&images, &evaluations);
            let mut place = recorded.take();
            let output = match &evaluations[..] {
                [one] => step.run(denoiser, place.as_deref_mut(), &one.input, &timesteps, trace.take())?,
                many => {
                    let inputs: Vec<&Tensor> = many.iter().map(|one| &one.input).collect();
                    step.run(denoiser, place.as_deref_mut(), &Tensor::cat(&inputs, 0)?, &timesteps, trace.take())?
                }
            };
            // Groups with self-attention guidance are alone in their call.
            let degraded = match (&members[..], &evaluations[..]) {
                ([group], [one]) if group.network.has_degraded() => {
                    let input = group.degraded(one, &output)?;
                    Some(step.of_first_rows(group.images())?.run(denoiser, place, &input, &timesteps, None)?)
                }
                _ => None,
            };
            if members.len() > 1
                && let Some(feature) = step.stored_feature()
            {
                let parts = split(feature.clone(), &images)?;
                for (group, part) in members.iter().zip(parts) {
                    if let Some(own) = group.network.feature() {
                        own.slice_set(&kiln_ops::contiguous(&part)?, 0, 0)?;
                    }
                }
            }
            let outputs = split(output, &images)?;
            for ((group, evaluation), output) in members.iter_mut().zip(evaluations).zip(outputs) {
                group.advance(evaluation, output, degraded.as_ref())?;
            }
        }
        Ok(())
    }

    /// Assigns the groups of a denoiser to calls, and computes the conditions of the calls that change.
    fn arrange(&mut self, number: usize, denoiser: &dyn Denoiser, dtype: DType) -> Result<()> {
        let mut wanted: Vec<(Form, Vec<GroupId>)> = Vec::new();
        let is_its = |group: &Group| group.takes_part() && group.turns.current().denoiser == number;
        for (id, group) in self.groups.iter().filter(|(_, group)| is_its(group)) {
            let form = group.form();
            match wanted.iter_mut().find(|(known, _)| *known == form) {
                Some((_, groups)) => groups.push(*id),
                None => wanted.push((form, vec![*id])),
            }
        }
        let (mut before, others): (Vec<Call>, Vec<Call>) =
            std::mem::take(&mut self.calls).into_iter().partition(|call| call.denoiser == number);
        let (own, mut parked): (Vec<Call>, Vec<Call>) =
            std::mem::take(&mut self.parked).into_iter().partition(|call| call.denoiser == number);
        before.extend(own);
        let acts = |call: &Call| {
            self.groups.iter().any(|(id, group)| {
                call.groups.contains(id) && group.turns.current().denoiser == call.denoiser && group.is_running()
            })
        };
        self.calls = others.into_iter().filter(acts).collect();
        for (_, ids) in wanted {
            let mut members: Vec<&mut Group> =
                self.groups.iter_mut().filter(|(id, _)| ids.contains(id)).map(|(_, group)| group).collect();
            let known = before.iter().position(|call| call.groups == ids);
            let known = known.filter(|_| members.iter().all(|group| !group.changes()));
            let call = match known {
                Some(place) => before.swap_remove(place),
                None => {
                    let step = guided(&mut members, denoiser, dtype)?.with_text_keys(denoiser)?;
                    Call { denoiser: number, step, groups: ids }
                }
            };
            self.calls.push(call);
        }
        parked.extend(before.into_iter().filter(|call| call.groups.iter().all(|id| self.is_paused(*id))));
        self.parked = parked;
        Ok(())
    }
}

impl Group {
    /// The rows' conditions at the next evaluation.
    fn conditioning(&mut self, denoiser: &dyn Denoiser, dtype: DType) -> Result<Conditioning> {
        let (step, now) = self.next();
        let mut conditioning = self.turns.current_mut().conditions.at(step, now.rows())?;
        if let Some(extra) = &self.extra {
            let rows = conditioning.context.dim(0)? / self.images().max(1);
            conditioning.extra_channels = Some(extra.repeat((rows, 1, 1, 1))?);
        }
        let (images, rows) = (self.images().max(1), conditioning.context.dim(0)?);
        let Turn { denoiser: number, conditions, .. } = self.turns.current();
        let unconditional = conditions.unconditional_of_image(now.on);
        let of_image = (unconditional, (rows / images).saturating_sub(unconditional));
        if *number == 0 {
            self.controls.add_to(&mut conditioning, self.at(), of_image)?;
            conditioning.image_prompts = self.prompts.at(self.at(), of_image)?;
            conditioning.hooks = self.network.inputs(now.rows(), of_image);
            let (_, _, height, width) = self.latents.dims4()?;
            let on = (dtype, self.latents.device());
            let size = (height, width);
            conditioning.hooks.cache = self.network.cache(now.rows(), (rows, size), denoiser, on)?;
            conditioning.hooks.map = self.network.map(rows, size, denoiser, on.1)?;
            conditioning.hooks.shrink = self.network.shrink(now.timestep, size, denoiser, on.1)?;
        }
        Ok(conditioning)
    }

    /// The next evaluation, with the input that the denoiser gets.
    fn evaluation(&mut self) -> Result<Evaluation> {
        let evaluation = self.stepper.evaluation(&self.latents, self.noise.as_mut())?;
        match &self.kept {
            Some(kept) => kept.blend_input(evaluation, &self.stepper),
            None => Ok(evaluation),
        }
    }

    /// How much of each image is seen instead of the input after the last step, in the size of the latents; `None` where the
    /// mask alone says that.
    pub(crate) fn visible(&self) -> Result<Option<Vec<Gray8Image>>> {
        self.kept.as_ref().map_or(Ok(None), |kept| kept.visible(&self.latents))
    }

    /// The input of self-attention guidance `(n, c, h, w)`, after the step's `output` for an evaluation. The first prediction is
    /// the unconditional one, or without guidance the conditional one.
    fn degraded(&self, evaluation: &Evaluation, output: &Tensor) -> Result<Tensor> {
        let first = output.narrow(0, 0, self.images())?;
        let clean = self.stepper.prediction(evaluation, first)?;
        let point = self.stepper.schedule().points().get(self.stepper.index());
        let alpha = point.map_or(1.0, |point| point.alpha / point.norm());
        let degraded = self.network.degraded(&evaluation.input, &clean.to_dtype(DType::F32)?, alpha)?;
        Ok(degraded.unwrap_or_else(|| evaluation.input.clone()))
    }

    /// Takes the denoiser's output for an evaluation of this group, and that for the input of self-attention guidance.
    fn advance(&mut self, evaluation: Evaluation, output: Tensor, degraded: Option<&Tensor>) -> Result<()> {
        let (_, now) = self.next();
        self.guided = Some(now);
        self.last_form = Some(self.network.form(now.rows(), now.timestep));
        self.network.advance(now.rows());
        let answer: ModelOutput = self.turns.current_mut().guidance.answer(output, &now, degraded)?;
        let answer = match &self.kept {
            Some(kept) => kept.blend_output(answer, &self.stepper, &evaluation)?,
            None => answer,
        };
        if self.keeps_prediction {
            self.prediction = Some(self.stepper.prediction(&evaluation, answer.clone())?);
        }
        let latents = self.stepper.advance(evaluation, answer, self.noise.as_mut())?;
        if self.turns.advance() {
            self.guided = None; // another model has other conditions
            if let Some(schedule) = self.turns.current().schedule.clone() {
                self.stepper = Stepper::new(schedule);
            }
        }
        self.latents = match &self.kept {
            Some(kept) => kept.put_back(&latents, self.stepper.schedule(), self.stepper.index())?,
            None => latents,
        };
        Ok(())
    }
}

/// The files of a job's control networks and IP-Adapters.
fn nets(job: &Job) -> Vec<PathBuf> {
    let controls = job.controls.iter().map(|control| control.using.net.clone());
    controls.chain(job.ip_adapters.iter().map(|adapter| adapter.using.model.clone())).collect()
}

/// The step of some groups at their next evaluation. A group alone has its conditions as they are.
fn guided(members: &mut [&mut Group], denoiser: &dyn Denoiser, dtype: DType) -> Result<GuidedStep> {
    let scale = members.first().and_then(|group| group.next().1.within_step);
    let images: Vec<usize> = members.iter().map(|group| group.images()).collect();
    let parts = members.iter_mut().map(|group| group.conditioning(denoiser, dtype)).collect::<Result<Vec<_>>>()?;
    if let ([conditioning], [group]) = (&parts[..], &members[..]) {
        return Ok(GuidedStep::new(conditioning, scale, dtype)?.with_weights(group.turns.weights().cloned()));
    }
    let conditions: Vec<&Conditioning> = parts.iter().collect();
    let conditioning = Conditioning::combine(&conditions, |rows| Ok(interleaved(rows, &images).map_err(nn)?))?;
    let weights: Vec<&Tensor> = members.iter().filter_map(|group| group.turns.weights()).collect();
    let weights = if weights.is_empty() { None } else { Some(interleaved(&weights, &images)?) };
    Ok(GuidedStep::new(&conditioning, scale, dtype)?.with_weights(weights))
}

fn nn(error: candle_core::Error) -> kiln_nn::Error {
    error.into()
}
