//! The sampler loop: batches that are denoised together, each at its own place of its own schedule.

use std::collections::BTreeSet;
use std::path::PathBuf;

use candle_core::{DType, Tensor};
use kiln_network::Denoiser;
use kiln_ops::trace::Trace;
use kiln_request::{Job, LoraUse};

use crate::error::{Error, Result};
use crate::pipeline::calls::Calls;
use crate::pipeline::group::Group;
use crate::pipeline::recorded::RecordedStep;
use crate::pipeline::second_denoiser::SecondDenoiser;
use crate::pipeline::throttle::StepThrottle;
use crate::plan::{Pass, Workload};

/// Tells a group of a running batch from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct GroupId(u64);

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
    calls: Calls,
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

    /// The work of all groups that are not paused, as memory is planned for it; `None` if there is none.
    pub(crate) fn work(&self) -> Option<Workload> {
        let active = self.work.iter().filter(|(id, _)| !self.is_paused(*id));
        active.map(|(_, work)| *work).reduce(Workload::with)
    }

    /// Has the groups `active` take part in evaluations from now on, and no others. False if nothing changed.
    pub(crate) fn select(&mut self, active: &[GroupId]) -> bool {
        let mut changed = false;
        for (id, group) in &mut self.groups {
            changed |= group.pause(!active.contains(id));
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
        self.group(id).is_some_and(Group::is_paused)
    }

    /// Says whether the clean image that the denoiser predicts for a group is kept at its next evaluations, for
    /// [`Self::prediction`].
    pub fn keep_prediction(&mut self, id: GroupId, keep: bool) {
        if let Some(group) = self.group_mut(id) {
            group.keep_prediction(keep);
        }
    }

    /// The clean images that the denoiser predicted for a group at its last evaluation, latents `(n, c, h, w)` in f32 on the
    /// denoiser's device. `None` before the first evaluation since [`Self::keep_prediction`].
    pub fn prediction(&self, id: GroupId) -> Option<&Tensor> {
        self.group(id)?.prediction()
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
        self.calls.forget(id);
        self.work.retain(|(known, _)| *known != id);
        self.passed.retain(|known| *known != id);
        Some(self.groups.remove(place).1)
    }

    /// Drops a group, wherever it is on its way. False if there is none of this number.
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
    /// [`Error::Request`] if it has left, or never was there.
    pub fn finish(&mut self, id: GroupId) -> Result<Group> {
        self.take(id).ok_or_else(|| Error::value("group", id.0, "a group of this running batch"))
    }

    /// The group of this number, to be changed between evaluations.
    pub(crate) fn group_mut(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.iter_mut().find(|(known, _)| *known == id).map(|(_, group)| group)
    }

    fn group(&self, id: GroupId) -> Option<&Group> {
        self.groups.iter().find(|(known, _)| *known == id).map(|(_, group)| group)
    }

    /// The numbers of the denoisers that make the groups' next evaluations, the largest first: a group goes from one to the next
    /// larger, so that none is evaluated twice by one call of [`Self::step_of`] for each.
    pub(crate) fn acting(&self) -> Vec<usize> {
        let running = self.groups.iter().filter(|(_, group)| group.takes_part());
        let numbers: BTreeSet<usize> = running.map(|(_, group)| group.turns().current().denoiser).collect();
        numbers.into_iter().rev().collect()
    }

    /// Evaluations until the denoiser of a group changes or the group is done, with the denoiser after that: of the group that is
    /// there first.
    pub(crate) fn until_next(&self) -> Option<(usize, Option<usize>)> {
        let running = self.groups.iter().filter(|(_, group)| group.takes_part());
        running.map(|(_, group)| group.turns().until_next()).min_by_key(|(left, _)| *left)
    }

    /// Has denoisers make in each step what they could make once for all steps, for calls that change from now on.
    pub(crate) fn prepare_each_step(&mut self, each: bool) {
        self.calls.prepares_each_step = each;
    }

    /// One evaluation of every group that is not done, by one denoiser for all. `recorded` belongs to the denoiser with its weights;
    /// the first call alone uses it. Where an error comes back, no group whose call failed has moved.
    ///
    /// # Errors
    /// Errors of the denoiser and of the samplers.
    pub fn step(
        &mut self,
        denoiser: &dyn Denoiser,
        recorded: Option<&mut RecordedStep>,
        dtype: DType,
        trace: Option<&mut Trace>,
    ) -> Result<()> {
        self.step_of(0, (denoiser, None), recorded, dtype, trace)
    }

    /// Like [`Self::step`], for the groups whose next evaluation the denoiser of this number makes, with a second device for
    /// part of the rows.
    pub(crate) fn step_of(
        &mut self,
        number: usize,
        (denoiser, mut second): (&dyn Denoiser, Option<&mut SecondDenoiser>),
        mut recorded: Option<&mut RecordedStep>,
        dtype: DType,
        mut trace: Option<&mut Trace>,
    ) -> Result<()> {
        self.calls.arrange(&mut self.groups, number, denoiser, dtype, second.as_deref())?;
        for call in self.calls.of(number) {
            call.evaluate(&mut self.groups, denoiser, recorded.take(), second.as_deref_mut(), trace.take())?;
        }
        Ok(())
    }
}

/// The files of a job's control networks and IP-Adapters.
fn nets(job: &Job) -> Vec<PathBuf> {
    let controls = job.controls.iter().map(|control| control.using.net.clone());
    controls.chain(job.ip_adapters.iter().map(|adapter| adapter.using.model.clone())).collect()
}
