//! Calls of the denoiser: which groups share one, and what a call does for its groups.

use candle_core::{DType, Tensor};
use kiln_ops::trace::Trace;
use kiln_scheduler::Evaluation;
use kiln_unet::Conditioning;

use crate::error::Result;
use crate::pipeline::call_rows::{interleaved, split, timesteps};
use crate::pipeline::denoiser::Denoiser;
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
}

impl Call {
    /// One evaluation of its groups, which are among `groups`. `second` computes part of the rows where it can.
    ///
    /// # Errors
    /// Those of the denoiser and of the samplers. Where the denoiser fails, no group has moved.
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
        let output = match (&self.halves, second) {
            (Some(halves), Some(second)) => {
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
        self.keep_features(&members, &images)?;
        let outputs = split(output, &images)?;
        for ((group, evaluation), output) in members.iter_mut().zip(evaluations).zip(outputs) {
            group.advance(evaluation, output, degraded.as_ref())?;
        }
        Ok(())
    }

    /// Copies the feature that DeepCache stored for the rows of the call to the groups that share it.
    fn keep_features(&self, members: &[&mut Group], images: &[usize]) -> Result<()> {
        let Some(feature) = self.step.stored_feature().filter(|_| members.len() > 1) else { return Ok(()) };
        for (group, part) in members.iter().zip(split(feature.clone(), images)?) {
            if let Some(own) = group.network().feature() {
                own.slice_set(&kiln_ops::contiguous(&part)?, 0, 0)?;
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
    /// Those of the tensors.
    pub(crate) fn arrange(
        &mut self,
        groups: &mut [(GroupId, Group)],
        number: usize,
        denoiser: &dyn Denoiser,
        dtype: DType,
        second: Option<&SecondDenoiser>,
    ) -> Result<()> {
        let wanted = by_form(groups, number);
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
        for ids in wanted {
            let mut members = members(groups, &ids);
            let known = before.iter().position(|call| call.groups == ids);
            let known = known.filter(|_| members.iter().all(|group| !group.changes()));
            let call = match known {
                Some(place) => before.swap_remove(place),
                None => {
                    let step = guided(&mut members, denoiser, dtype)?;
                    let images = members.iter().map(|group| group.images()).sum();
                    let halves =
                        second.map(|second| Halves::of(&step, images, denoiser, second)).transpose()?.flatten();
                    // Parts have keys and values of their own.
                    let step = if halves.is_some() { step } else { step.with_text_keys(denoiser)? };
                    Call { denoiser: number, step, groups: ids, halves }
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
    for (id, group) in
        groups.iter().filter(|(_, group)| group.takes_part() && group.turns().current().denoiser == number)
    {
        let form = group.form();
        match forms.iter_mut().find(|(known, _)| *known == form) {
            Some((_, ids)) => ids.push(*id),
            None => forms.push((form, vec![*id])),
        }
    }
    forms.into_iter().map(|(_, ids)| ids).collect()
}

/// The step of some groups at their next evaluation. A group alone has its conditions as they are.
fn guided(members: &mut [&mut Group], denoiser: &dyn Denoiser, dtype: DType) -> Result<GuidedStep> {
    let scale = members.first().and_then(|group| group.next().1.within_step);
    let images: Vec<usize> = members.iter().map(|group| group.images()).collect();
    let parts = members.iter_mut().map(|group| group.conditioning(denoiser, dtype)).collect::<Result<Vec<_>>>()?;
    if let ([conditioning], [group]) = (&parts[..], &members[..]) {
        return Ok(GuidedStep::new(conditioning, scale, dtype)?.with_weights(group.turns().weights().cloned()));
    }
    let conditions: Vec<&Conditioning> = parts.iter().collect();
    let conditioning = Conditioning::combine(&conditions, |rows| Ok(interleaved(rows, &images).map_err(nn)?))?;
    let weights: Vec<&Tensor> = members.iter().filter_map(|group| group.turns().weights()).collect();
    let weights = if weights.is_empty() { None } else { Some(interleaved(&weights, &images)?) };
    Ok(GuidedStep::new(&conditioning, scale, dtype)?.with_weights(weights))
}

fn nn(error: candle_core::Error) -> kiln_nn::Error {
    error.into()
}
