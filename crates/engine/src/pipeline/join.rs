//! Running batches of an engine: jobs that join, leave and are finished between two evaluations of the denoiser.

use kiln_request::{Job, LoraUse};
use std::ops::ControlFlow;

use crate::engine::Engine;
use crate::error::{Error, Result, proceed};
use crate::generated_image::GeneratedImage;
use crate::pipeline::batch::Batch;
use crate::pipeline::decode::{Latents, begin_decoding, decode};
use crate::pipeline::denoise::finished;
use crate::pipeline::event::{Event, Stage};
use crate::pipeline::first_stages::first_stages;
use crate::pipeline::pending_latents::PendingLatents;
use crate::pipeline::run::Progress;
use crate::pipeline::running::{GroupId, RunningBatch};
use crate::pipeline::second_pass::{second_group, second_pass};
use crate::plan::Pass;

impl Engine {
    /// Encodes one batch of `job`, the images from number `first` on, and has it take part in `running` from the next
    /// evaluation on. Whatever else is in `running`, each image has the bits that it has alone, on the CPU.
    ///
    /// # Errors
    /// Errors of [`Engine::txt2img`], and [`Error::Request`] where the job's LoRAs or its refiner are not those of the
    /// batches that are running: they are in the weights. Where an error comes back, nothing has joined.
    pub fn join(
        &mut self,
        running: &mut RunningBatch,
        job: &Job,
        first: usize,
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<GroupId> {
        let mut on_event = |event| proceed(watch(event));
        self.memory_manager.begin_pass(Pass::First);
        if running.is_empty() {
            self.take_networks(job, &mut on_event)?;
            running.begin(job);
        } else if self.networks.refiner() != job.refiner.as_ref() {
            let found = job.refiner.as_ref().map_or_else(|| "none".into(), |refiner| refiner.model().name());
            return Err(Error::value("refiner", found, "the refiner of the batches that are running"));
        } else if running.loras() != job.loras {
            let found = job.loras.iter().map(LoraUse::name).collect::<Vec<_>>().join(", ");
            let expected = "the LoRAs of the batches that are running";
            return Err(Error::value("loras", found, expected));
        } else if !running.has_nets_of(job) {
            let controls = job.controls.iter().map(|control| control.using.name());
            let found = controls.chain(job.ip_adapters.iter().map(|adapter| adapter.using.name()));
            let expected = "the control networks and IP-Adapters of the batches that are running";
            return Err(Error::value("controls", found.collect::<Vec<_>>().join(", "), expected));
        }
        let batch = Batch::of_job(job, first);
        let texts = self.plan_texts(&batch)?;
        let shape = texts.shape().then(self.second_shape(&batch)?);
        let work = shape.work(job, batch.len(), texts.texts());
        let all = running.work().map_or(work, |others| others.with(work));
        self.prepare(all)?;
        let group = self.attempt(Stage::Denoise, &mut on_event, |engine, on_event| {
            first_stages(engine, &batch, &texts, None, on_event)
        })?;
        Ok(running.join(group, Some(work)))
    }

    /// Has the batches `active` of `running` take part in the next evaluations, and no others. The others keep their places:
    /// their bits do not depend on when their steps are made.
    ///
    /// # Errors
    /// [`Error::Budget`] if there is no memory for these at once; they are selected all the same.
    pub fn select(&mut self, running: &mut RunningBatch, active: &[GroupId]) -> Result<()> {
        match (running.select(active), running.work()) {
            (true, Some(work)) => self.prepare(work),
            _ => Ok(()),
        }
    }

    /// One evaluation of the denoiser for every batch of `running` that is not done or paused. Gives the batches that are done,
    /// which
    /// [`Engine::finish`] takes out.
    ///
    /// # Errors
    /// See [`Engine::txt2img`]. A batch whose evaluation failed is where it was, so that the call can be made again.
    pub fn step(
        &mut self,
        running: &mut RunningBatch,
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Vec<GroupId>> {
        self.memory_manager.begin_pass(running.pass());
        self.attempt(Stage::Denoise, &mut |event| proceed(watch(event)), |engine, _| engine.advance(running, None))?;
        running.throttle.started(&self.device, 1)?;
        Ok(running.finished())
    }

    /// Has a batch go on with its second pass: the images of `job` from number `first` on, as it joined, are enlarged and take part
    /// in `running` as another batch, whose number is given. `None` if there is no second pass, or where it is left to
    /// [`Engine::finish`] because its LoRAs are others.
    ///
    /// # Errors
    /// See [`Engine::txt2img`]. Then the batch has left.
    pub fn begin_second_pass(
        &mut self,
        running: &mut RunningBatch,
        id: GroupId,
        (job, first): (&Job, usize),
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Option<GroupId>> {
        let Some(pass) = job.second_pass().filter(|pass| pass.job.loras == job.loras && !running.has_passed(id)) else {
            return Ok(None);
        };
        let (batch, work) = (Batch::of_job(job, first), running.work_of(id));
        let all = finished(&running.finish(id)?)?;
        let group = second_group(self, &batch, pass, all, &mut |event| proceed(watch(event)))?;
        let id = running.join(group, work);
        running.leave_out_second_pass(id);
        Ok(Some(id))
    }

    /// Takes a batch out of `running` and decodes it as it is: the images of `job` from number `first` on, as it joined. A second
    /// pass that has not begun ([`Engine::begin_second_pass`]) and is not left out ([`RunningBatch::leave_out_second_pass`]) runs
    /// here, between two evaluations of the others.
    ///
    /// # Errors
    /// [`Error::Request`] where the batch has left, and those of [`Engine::txt2img`].
    pub fn finish(
        &mut self,
        running: &mut RunningBatch,
        id: GroupId,
        (job, first): (&Job, usize),
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Vec<GeneratedImage>> {
        let all = self.take_latents(running, id, (job, first), watch)?;
        all.into_iter().map(|latents| self.decode_latents(&latents.read()?, job, watch)).collect()
    }

    /// Like [`Engine::finish`], without decoding: the latents of each image, for [`Engine::decode_latents`] or for a thread
    /// that decodes while steps run ([`Engine::overlapped`]). A GPU may still be at their last step.
    ///
    /// # Errors
    /// See [`Engine::finish`].
    pub fn take_latents(
        &mut self,
        running: &mut RunningBatch,
        id: GroupId,
        (job, first): (&Job, usize),
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<Vec<PendingLatents>> {
        let has_passed = running.has_passed(id);
        let (group, batch) = (running.finish(id)?, Batch::of_job(job, first));
        if has_passed || job.second_pass().is_none() {
            self.memory_manager.begin_pass(if job.second_pass().is_some() { Pass::Second } else { Pass::First });
            return PendingLatents::of(&batch, &group);
        }
        let mut on_event = |event| proceed(watch(event));
        let progress = Progress { before: 0, total: job.evaluations_of_passes(&self.model)? };
        let all = second_pass(self, &batch, finished(&group)?, progress, &mut on_event)?;
        (0..batch.len()).map(|place| Ok(Latents::of(&batch, &all, place)?.into())).collect()
    }

    /// Decodes an image of `job`.
    ///
    /// # Errors
    /// See [`Engine::txt2img`].
    pub fn decode_latents(
        &mut self,
        latents: &Latents,
        job: &Job,
        watch: &mut dyn FnMut(Event) -> ControlFlow<()>,
    ) -> Result<GeneratedImage> {
        begin_decoding(self);
        let image = decode(self, latents, &mut |event| proceed(watch(event)))?;
        image.generated(job, &self.origin, latents.index)
    }
}
