//! Calls of the denoiser: which groups share one, and what a call does for its groups.

use candle_core::{DType, Tensor};
use kiln_network::{Denoiser, Inputs};
use kiln_ops::trace::Trace;
use kiln_scheduler::Evaluation;

use crate::error::Result;
use crate::pipeline::areas::AreaSteps;
use crate::pipeline::call_rows::{interleaved, split, timesteps};
use crate::pipeline::group::{Form, Group};
use crate::pipeline::halves::Halves;
use crate::pipeline::recorded::RecordedStep;
use crate::pipeline::running::GroupId;
use crate::pipeline::second_denoiser::SecondDenoiser;
use crate::pipeline::step::GuidedStep;

/// One call of the denoiser for some groups.
pub(crate) struct Call {
    denoiser: usize,
    /// The groups, in the order of their rows.
    groups: Vec<GroupId>,
    step: GuidedStep,
    /// The parts of the step where two devices share it.
    halves: Option<Halves>,
    /// The calls of the step if parts are computed for rectangles of latents.
    areas: Option<AreaSteps>,
}

impl Call {
    /// One evaluation of its groups, which are among `groups`. `second` computes part of the rows if it can.
    ///
    /// # Errors
    /// Errors of the denoiser and of the samplers. Where the denoiser fails, no group has moved.
    pub(crate) fn evaluate(
        &self,
        groups: &mut [(GroupId, Group)],
        denoiser: &dyn Denoiser,
        mut recorded: Option<&mut RecordedStep>,
        second: Option<&mut SecondDenoiser>,
        trace: Option<&mut Trace>,
    ) -> Result<()> {
        let step = &self.step;
        let mut members = members(groups, &self.groups);
        let evaluations = members.iter_mut().map(|group| group.evaluation()).collect::<Result<Vec<Evaluation>>>()?;
        let images: Vec<usize> = members.iter().map(|group| group.images()).collect();
        let timesteps = timesteps(&images, &evaluations);
        let joined;
        let input = match &evaluations[..] {
            [one] => &one.input,
            many => {
                joined = Tensor::cat(&many.iter().map(|one| &one.input).collect::<Vec<_>>(), 0)?;
                &joined
            }
        };
        let output = match (&self.areas, &self.halves, second) {
            (Some(areas), ..) => areas.run(step, denoiser, input, &timesteps)?,
            (None, Some(halves), Some(second)) => {
                halves.run(step, (denoiser, recorded.as_deref_mut()), second, (input, &timesteps), trace)?
            }
            _ => step.run(denoiser, recorded.as_deref_mut(), input, &timesteps, trace)?,
        };
        // A GPU computes the output meanwhile.
        members.iter_mut().try_for_each(|group| group.draw_ahead())?;
        // Groups with self-attention guidance are alone in their call.
        let degraded = match (&members[..], &evaluations[..]) {
            ([group], [one]) if group.network().has_degraded() => {
                let input = group.degraded(one, &output)?;
                Some(step.of_first_rows(group.images())?.run(denoiser, recorded, &input, &timesteps, None)?)
            }
            _ => None,
        };
        self.keep_outputs(&members, &images)?;
        let outputs = split(output, &images)?;
        for ((group, evaluation), output) in members.iter_mut().zip(evaluations).zip(outputs) {
            group.advance(evaluation, output, degraded.as_ref())?;
        }
        Ok(())
    }

    /// Copies the outputs for the rows of the call to the groups that share it.
    fn keep_outputs(&self, members: &[&mut Group], images: &[usize]) -> Result<()> {
        if members.len() < 2 {
            return Ok(()); // a group alone has the same tensors as its call
        }
        for (slot, output) in self.step.outputs() {
            for (group, part) in members.iter().zip(split(output.clone(), images)?) {
                group.take_output(slot, &part)?;
            }
        }
        Ok(())
    }
}

/// The calls of the groups of a running batch.
#[derive(Default)]
pub(crate) struct Calls {
    active: Vec<Call>,
    /// Calls whose groups are all paused: they are as they were when the groups go on.
    parked: Vec<Call>,
    /// Whether the denoisers make in each step what they could make once for all steps, which takes less memory.
    pub(crate) prepares_each_step: bool,
}

impl Calls {
    /// The calls of the denoiser of this number.
    pub(crate) fn of(&self, number: usize) -> impl Iterator<Item = &Call> {
        self.active.iter().filter(move |call| call.denoiser == number)
    }

    /// Drops the calls in which a group takes part.
    pub(crate) fn forget(&mut self, id: GroupId) {
        self.active.retain(|call| !call.groups.contains(&id));
        self.parked.retain(|call| !call.groups.contains(&id));
    }

    /// Assigns the groups whose next evaluation the denoiser `number` makes to calls, and computes the conditions of the calls
    /// that change. `second` computes part of their rows.
    ///
    /// # Errors
    /// Errors of the tensors.
    pub(crate) fn arrange(
        &mut self,
        groups: &mut [(GroupId, Group)],
        number: usize,
        denoiser: &dyn Denoiser,
        dtype: DType,
        second: Option<&SecondDenoiser>,
    ) -> Result<()> {
        let of_number = |call: &Call| call.denoiser == number;
        let (mut before, others): (Vec<Call>, Vec<Call>) =
            std::mem::take(&mut self.active).into_iter().partition(of_number);
        let (own, parked): (Vec<Call>, Vec<Call>) = std::mem::take(&mut self.parked).into_iter().partition(of_number);
        (before, self.parked) = (before.into_iter().chain(own).collect(), parked);
        let acts = |call: &Call| {
            groups.iter().any(|(id, group)| {
                call.groups.contains(id) && group.turns().current().denoiser == call.denoiser && group.is_running()
            })
        };
        self.active = others.into_iter().filter(acts).collect();
        // A group whose inputs change may share a call with others than before.
        let mut made: Vec<(GroupId, Inputs)> = Vec::new();
        for (id, group) in groups.iter_mut().filter(|(_, group)| is_of(group, number) && group.changes()) {
            made.push((*id, group.inputs(denoiser, dtype)?));
        }
        let prepared_by = (!self.prepares_each_step).then_some(denoiser);
        for ids in by_form(groups, number) {
            let changes = made.iter().any(|(id, _)| ids.contains(id));
            let known = before.iter().position(|call| call.groups == ids).filter(|_| !changes);
            let call = match known {
                Some(place) => before.swap_remove(place),
                None => {
                    let mut inputs = Vec::with_capacity(ids.len());
                    for (id, group) in groups.iter_mut().filter(|(id, _)| ids.contains(id)) {
                        let own = made.iter().position(|(known, _)| known == id);
                        inputs.push(match own {
                            Some(place) => made.swap_remove(place).1,
                            None => group.inputs(denoiser, dtype)?,
                        });
                    }
                    let mut members = members(groups, &ids);
                    let step = guided(&members, &inputs, dtype)?;
                    let images = members.iter().map(|group| group.images()).sum();
                    let areas = area_steps(&mut members, &step, denoiser, prepared_by)?;
                    let halves = match second.filter(|_| areas.is_none()) {
                        Some(second) => Halves::of(&step, images, prepared_by, second)?,
                        None => None,
                    };
                    // Parts have prepared inputs of their own.
                    let step = match prepared_by.filter(|_| halves.is_none() && areas.is_none()) {
                        Some(denoiser) => step.prepared(denoiser)?,
                        None => step,
                    };
                    Call { denoiser: number, step, groups: ids, halves, areas }
                }
            };
            self.active.push(call);
        }
        let is_paused = |id: &GroupId| groups.iter().any(|(known, group)| known == id && group.is_paused());
        self.parked.extend(before.into_iter().filter(|call| call.groups.iter().all(is_paused)));
        Ok(())
    }
}

/// The groups with these numbers, in the order in which they joined.
fn members<'a>(groups: &'a mut [(GroupId, Group)], ids: &[GroupId]) -> Vec<&'a mut Group> {
    groups.iter_mut().filter(|(id, _)| ids.contains(id)).map(|(_, group)| group).collect()
}

/// The groups whose next evaluation the denoiser `number` makes, those together that can share a call.
fn by_form(groups: &[(GroupId, Group)], number: usize) -> Vec<Vec<GroupId>> {
    let mut forms: Vec<(Form, Vec<GroupId>)> = Vec::new();
    for (id, group) in groups.iter().filter(|(_, group)| is_of(group, number)) {
        let form = group.form();
        match forms.iter_mut().find(|(known, _)| *known == form) {
            Some((_, ids)) => ids.push(*id),
            None => forms.push((form, vec![*id])),
        }
    }
    forms.into_iter().map(|(_, ids)| ids).collect()
}

/// Whether the denoiser `number` makes the next evaluation of a group.
fn is_of(group: &Group, number: usize) -> bool {
    group.takes_part() && group.turns().current().denoiser == number
}

/// The calls of `step` for rectangles of latents. Groups that have such parts are alone in their call.
fn area_steps(
    members: &mut [&mut Group],
    step: &GuidedStep,
    denoiser: &dyn Denoiser,
    prepared_by: Option<&dyn Denoiser>,
) -> Result<Option<AreaSteps>> {
    let [group] = members else { return Ok(None) };
    if group.turns().areas().is_none() {
        return Ok(None);
    }
    let inputs = group.inputs_of_any_size()?;
    let areas = group.turns().areas();
    areas.map(|areas| AreaSteps::new(areas, &inputs, step, denoiser, prepared_by)).transpose()
}

/// The step of some groups with these inputs at their next evaluation. A group alone has its inputs as they are.
fn guided(members: &[&mut Group], parts: &[Inputs], dtype: DType) -> Result<GuidedStep> {
    let scale = members.first().and_then(|group| group.next().1.within_step);
    let images: Vec<usize> = members.iter().map(|group| group.images()).collect();
    if let ([inputs], [group]) = (parts, members) {
        return Ok(GuidedStep::new(inputs, scale, dtype)?.with_weights(group.turns().weights().cloned()));
    }
    let inputs = Inputs::combine(&parts.iter().collect::<Vec<_>>(), |rows| -> Result<Tensor> {
        Ok(interleaved(rows, &images)?)
    })?;
    let weights: Vec<&Tensor> = members.iter().filter_map(|group| group.turns().weights()).collect();
    let weights = if weights.is_empty() { None } else { Some(interleaved(&weights, &images)?) };
    Ok(GuidedStep::new(&inputs, scale, dtype)?.with_weights(weights))
}
