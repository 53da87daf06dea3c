//! Images that are denoised together from start to end, and their place in their schedule.

use std::sync::Arc;

use candle_core::{DType, Tensor};
use kiln_media::Gray8Image;
use kiln_network::slots::{CONTEXT, EXTRA_CHANNELS};
use kiln_network::{Denoiser, InputKey, Inputs, Slot, StepShape};
use kiln_request::PromptSteps;
use kiln_scheduler::{Evaluation, ModelOutput, NoiseSource, Schedule, Stepper};

use crate::error::{Error, Result};
use crate::pipeline::ahead_noise::AheadNoise;
use crate::pipeline::conditioning::{Conditions, StepRows};
use crate::pipeline::control_inputs::{At, ControlInputs};
use crate::pipeline::guidance::{EvaluationGuidance, Guidance};
use crate::pipeline::kept::Kept;
use crate::pipeline::network_parts::{NetworkForm, NetworkParts};
use crate::pipeline::prompt_inputs::PromptInputs;
use crate::pipeline::reference_inputs::ReferenceInputs;
use crate::pipeline::start::Start;
use crate::pipeline::turns::{Turn, Turns};

/// Images at one place of one schedule: those of one batch. They come and go together.
pub struct Group {
    stepper: Stepper<Arc<Schedule>>,
    kept: Option<Kept>,
    /// Channels besides the latents that the denoiser takes, `(n, e, h, w)` in f32.
    extra: Option<Tensor>,
    /// `(n, c, h, w)` in f32 on the denoiser's device.
    latents: Tensor,
    noise: AheadNoise,
    /// Which denoiser makes which evaluations.
    turns: Turns,
    /// The control networks of the first denoiser.
    controls: ControlInputs,
    /// Its image prompts.
    prompts: PromptInputs,
    /// Its reference images.
    references: ReferenceInputs,
    /// The parts that change the network: perturbed attention, FreeU, DeepCache and their kin.
    network: NetworkParts,
    /// Steps of the prompts' schedules.
    steps: PromptSteps,
    /// The guidance of the last evaluation; `None` before the first one.
    guided: Option<EvaluationGuidance>,
    /// The key of the inputs that were made last.
    key: Option<Arc<InputKey>>,
    /// Their state: tensors that calls write for later calls.
    state: Vec<(Slot, Tensor)>,
    /// The changes in the network at the last evaluation; `None` before the first one.
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
    /// [`crate::Error::Candle`] where the latents have another rank.
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
        Self::of_turns(schedule, start, noise, vec![turn], PromptSteps::Sampler(steps))
    }

    /// A group with several turns, at least one. The first begins with the sampler of `schedule`.
    ///
    /// # Errors
    /// See [`Self::new`].
    pub(crate) fn of_turns(
        schedule: Arc<Schedule>,
        start: Start,
        noise: Box<dyn NoiseSource + Send>,
        turns: Vec<Turn>,
        steps: PromptSteps,
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
            noise: AheadNoise::new(noise),
            turns,
            controls,
            prompts,
            references: ReferenceInputs::default(),
            network,
            steps,
            guided,
            key: None,
            state: Vec::new(),
            last_form: None,
            paused,
            keeps_prediction,
            prediction,
        };
        Ok(images)
    }

    /// Adds control networks.
    pub(crate) fn with_controls(self, controls: ControlInputs) -> Self {
        Self { controls, ..self }
    }

    /// Adds image prompts.
    pub(crate) fn with_prompts(self, prompts: PromptInputs) -> Self {
        Self { prompts, ..self }
    }

    /// Adds reference images.
    pub(crate) fn with_references(self, references: ReferenceInputs) -> Self {
        Self { references, ..self }
    }

    /// Adds changes of the network.
    pub(crate) fn with_network(self, network: NetworkParts) -> Self {
        Self { network, ..self }
    }

    /// How many images.
    pub(crate) fn images(&self) -> usize {
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
    pub(crate) fn is_running(&self) -> bool {
        self.done() < self.evaluations()
    }

    /// Whether evaluations are left, and it does not sit out.
    pub(crate) fn takes_part(&self) -> bool {
        self.is_running() && !self.paused
    }

    /// Whether it sits out.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Pauses the group, or has it take part again. False if nothing changed.
    pub(crate) fn pause(&mut self, paused: bool) -> bool {
        std::mem::replace(&mut self.paused, paused) != paused
    }

    /// Says whether the clean images that the denoiser predicts are kept at the next evaluations, for [`Self::prediction`].
    pub(crate) fn keep_prediction(&mut self, keep: bool) {
        self.keeps_prediction = keep;
        self.prediction = self.prediction.take().filter(|_| keep);
    }

    /// The clean images `(n, c, h, w)` of the last evaluation, where they are kept.
    pub(crate) fn prediction(&self) -> Option<&Tensor> {
        self.prediction.as_ref()
    }

    /// Which denoiser makes which evaluations.
    pub(crate) fn turns(&self) -> &Turns {
        &self.turns
    }

    /// The parts that change the network.
    pub(crate) fn network(&self) -> &NetworkParts {
        &self.network
    }

    /// The latents as they are now, `(n, c, h, w)` in f32.
    pub fn latents(&self) -> &Tensor {
        &self.latents
    }

    /// Replaces the latents between two evaluations.
    ///
    /// # Errors
    /// [`Error::Request`] for another shape than `(n, c, h, w)`.
    pub(crate) fn set_latents(&mut self, latents: &Tensor) -> Result<()> {
        if latents.dims() != self.latents.dims() {
            let [found, expected] = [latents, &self.latents].map(|tensor| format!("{:?}", tensor.dims()));
            return Err(Error::value("latents", found, format!("{expected}, as they were")));
        }
        self.latents = latents.to_dtype(DType::F32)?.to_device(self.latents.device())?;
        Ok(())
    }

    /// Sets the strength of guidance for all evaluations that are left; 1 turns it off.
    ///
    /// # Errors
    /// [`Error::Request`] where the images began without guidance, or for a negative number.
    pub(crate) fn set_cfg_scale(&mut self, scale: f64) -> Result<()> {
        self.turns.all_mut().try_for_each(|turn| turn.guidance.set_strength(scale))
    }

    /// The step of the prompts' schedules that the next evaluation belongs to, and its guidance.
    pub(crate) fn next(&self) -> (usize, EvaluationGuidance) {
        let call = self.done();
        let timestep = self.timestep(self.stepper.index());
        (self.steps.of_call(call, self.evaluations()), self.turns.current().guidance.at(call, timestep))
    }

    /// The place of the next evaluation.
    fn at(&self) -> At {
        let index = self.stepper.index();
        let (timestep, before) = (self.timestep(index), self.timestep(index.saturating_sub(1)));
        At { call: self.done(), calls: self.evaluations(), timestep, before }
    }

    /// The timestep of a point of the schedule; 0 past the last one.
    fn timestep(&self, index: usize) -> f64 {
        self.stepper.schedule().points().get(index).map_or(0.0, |point| point.timestep)
    }

    /// Whether the next evaluation has other conditions, other controls or another guidance than the last one.
    pub(crate) fn changes(&self) -> bool {
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

    /// The properties that two groups need to have in common for one call of the denoiser; those of the inputs that
    /// [`Self::inputs`] made last.
    pub(crate) fn form(&self) -> Form {
        let (_, now) = self.next();
        let Turn { denoiser, conditions, .. } = self.turns.current();
        Form {
            denoiser: *denoiser,
            latents: self.latents.dims().get(1..).unwrap_or_default().to_vec(),
            scale: now.within_step.map(f64::to_bits),
            rows: now.rows(),
            is_composed: conditions.is_composed(),
            alone: self.network.alone().or_else(|| self.turns.areas().map(|areas| areas.number)),
            inputs: self.key.clone(),
        }
    }

    /// The inputs of all rows at the next evaluation that do not depend on the size of the latents, apart from extra channels.
    pub(crate) fn inputs_of_any_size(&mut self) -> Result<Inputs> {
        let (step, now) = self.next();
        let inputs = self.turns.current_mut().conditions.at(step, now.rows())?;
        Ok(match &self.extra {
            Some(extra) => {
                let copies = inputs.batch() / self.images().max(1);
                inputs.with(EXTRA_CHANNELS, extra.repeat((copies, 1, 1, 1))?)
            }
            None => inputs,
        })
    }

    /// The inputs of all rows at the next evaluation.
    pub(crate) fn inputs(&mut self, denoiser: &dyn Denoiser, dtype: DType) -> Result<Inputs> {
        let (_, now) = self.next();
        let mut inputs = self.inputs_of_any_size()?;
        let (images, rows) = (self.images().max(1), inputs.batch());
        let Turn { denoiser: number, conditions, .. } = self.turns.current();
        let unconditional = conditions.unconditional_of_image(now.on);
        let of_image = (unconditional, (rows / images).saturating_sub(unconditional));
        let (_, _, height, width) = self.latents.dims4()?;
        inputs = denoiser.for_size(inputs, [height, width])?;
        if *number == 0 {
            self.controls.add_to(&mut inputs, denoiser, self.at(), of_image)?;
            self.references.add_to(&mut inputs, rows / images)?;
            self.prompts.add_to(&mut inputs, self.at(), of_image)?;
            let mut hooks = self.network.inputs(now.rows(), images, of_image.1);
            let on = (dtype, self.latents.device());
            let tokens = inputs.get(CONTEXT).map_or(0, |context| context.dims().get(1).copied().unwrap_or(0));
            let shape = StepShape { rows, height, width, tokens };
            hooks.cache = self.network.cache(now.rows(), shape, denoiser, on)?;
            hooks.map = self.network.map(shape, denoiser, on.1)?;
            hooks.shrink = self.network.shrink(now.timestep, shape, denoiser, on.1)?;
            inputs = self.network.add_skipped(hooks.add_to(inputs), now.rows(), images, of_image.1);
            inputs = self.network.add_block_cache(inputs, (now.rows(), images), shape, denoiser, on)?;
        }
        self.key = Some(Arc::new(inputs.group_key(images)));
        self.state = inputs.state().map(|(slot, tensor)| (*slot, tensor.clone())).collect();
        Ok(inputs)
    }

    /// Takes `part`, the values for the rows of this group that a call has written to an output.
    pub(crate) fn take_output(&self, slot: &Slot, part: &Tensor) -> Result<()> {
        if let Some((_, own)) = self.state.iter().find(|(own, _)| own == slot) {
            own.slice_set(&kiln_ops::contiguous(part)?, 0, 0)?;
        }
        Ok(())
    }

    /// The next evaluation, with the input that the denoiser gets.
    pub(crate) fn evaluation(&mut self) -> Result<Evaluation> {
        let evaluation = self.stepper.evaluation(&self.latents, &mut self.noise)?;
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

    /// Draws the noise that the sampler is expected to ask for after this evaluation.
    pub(crate) fn draw_ahead(&mut self) -> Result<()> {
        Ok(self.noise.draw_ahead()?)
    }

    /// The input of self-attention guidance `(n, c, h, w)`, after the step's `output` for an evaluation. The first prediction is
    /// the unconditional one, or without guidance the conditional one.
    pub(crate) fn degraded(&self, evaluation: &Evaluation, output: &Tensor) -> Result<Tensor> {
        let first = output.narrow(0, 0, self.images())?;
        let clean = self.stepper.prediction(evaluation, first)?;
        let point = self.stepper.schedule().points().get(self.stepper.index());
        let alpha = point.map_or(1.0, |point| point.alpha / point.norm());
        let degraded = self.network.degraded(&evaluation.input, &clean.to_dtype(DType::F32)?, alpha)?;
        Ok(degraded.unwrap_or_else(|| evaluation.input.clone()))
    }

    /// Takes the denoiser's output for an evaluation of this group, and that for the input of self-attention guidance.
    pub(crate) fn advance(&mut self, evaluation: Evaluation, output: Tensor, degraded: Option<&Tensor>) -> Result<()> {
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
        let latents = self.stepper.advance(evaluation, answer, &mut self.noise)?;
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

/// See [`Group::form`].
#[derive(PartialEq)]
pub(crate) struct Form {
    denoiser: usize,
    latents: Vec<usize>,
    scale: Option<u64>,
    rows: StepRows,
    is_composed: bool,
    alone: Option<u64>,
    inputs: Option<Arc<InputKey>>,
}
