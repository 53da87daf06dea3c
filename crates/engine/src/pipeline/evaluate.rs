//! One evaluation of the denoiser for latents of the caller, for comparisons step by step.

use candle_core::{Device, Tensor};
use kiln_network::slots::EXTRA_CHANNELS;
use kiln_request::Job;

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pipeline::batch::Batch;
use crate::pipeline::control_images::encode_controls;
use crate::pipeline::control_inputs::At;
use crate::pipeline::event::Stage;
use crate::pipeline::extra_channels::control_channels;
use crate::pipeline::guidance::Guidance;
use crate::pipeline::network_parts::NetworkParts;
use crate::pipeline::prompt_inputs::encode_prompts;
use crate::pipeline::reference_inputs::encode_references;
use crate::pipeline::steering::noise_of;
use crate::pipeline::step::GuidedStep;

impl Engine {
    /// The denoiser's output for `latents` `(n, c, h, w)` at evaluation `index` of the job's schedule, after guidance: what
    /// diffusers' pipelines pass to `scheduler.step`. `(n, c, h, w)` in f32 in the host's memory. `latents` are those of
    /// the job's first batch before the evaluation, not yet scaled for the network.
    ///
    /// A run of many steps amplifies the rounding of the first ones; a single evaluation shows the error of the text
    /// encoders, the U-Net and the guidance alone.
    ///
    /// # Errors
    /// Errors of [`Engine::txt2img`], and [`Error::Request`] where the schedule has no such evaluation.
    #[doc(hidden)]
    pub fn evaluate(&mut self, job: &Job, latents: &Tensor, index: usize) -> Result<Tensor> {
        let schedule = job.schedule(&self.model)?;
        let count = schedule.points().len();
        let Some(point) = schedule.points().get(index) else {
            let expected = format!("less than the {count} evaluations of the schedule");
            return Err(Error::value("evaluation", index, expected));
        };
        if job.has_areas() {
            return Err(Error::value("regions", "rectangles", "masks alone, for a single evaluation"));
        }
        self.set_refiner(job.refiner.as_ref())?;
        self.set_controls(&job.controls)?;
        self.set_ip_adapters(&job.ip_adapters)?;
        self.set_loras(&job.loras)?;
        let (work, _) = self.work(job)?;
        self.prepare(work)?;
        let plan = self.text().plan(&Batch::of_job(job, 0))?;
        let kept = self.memory_manager.keeps_text_encoders();
        let keep = self.memory_manager.keep(Stage::Encode)?;
        let mut conditions = self.text().conditions(job, plan, &keep, kept, &mut |_, _| Ok(()))?;
        let mut guidance = Guidance::new(job, &conditions, count);
        let now = guidance.at(index, point.timestep);
        let f = self.model.vae_config().downscale();
        let batch = Batch::of_job(job, 0);
        let mut noise = noise_of(self.steering.as_ref(), &batch, f);
        let control_latents = encode_controls(self, &batch, &mut noise, &mut |_| Ok(()))?;
        let references = encode_references(self, &batch, &mut noise, &mut |_| Ok(()))?;
        let extra = control_channels(self, &batch, &mut noise, &mut |_| Ok(()))?;
        let prompts = encode_prompts(self, &Batch::of_job(job, 0), conditions.is_guided(), &mut |_| Ok(()))?;
        self.make_room_for(Stage::Denoise);
        let controls = self.networks.first.embed_controls(&batch, control_latents)?;
        self.enter_denoiser(0)?;
        let shape = (self.model.vae_config().latent_channels, job.height / f, job.width / f);
        let mut inputs = conditions.at(job.prompt_steps().of_call(index, count), now.rows())?;
        let unconditional = conditions.unconditional_of_image(now.on);
        let images = job.batch_size.max(1);
        let rows = inputs.batch() / images;
        if let Some(extra) = extra {
            inputs = inputs.with(EXTRA_CHANNELS, extra.to_device(&self.device)?.repeat((rows, 1, 1, 1))?);
        }
        let (at, of_image) = (
            At { call: index, calls: count, timestep: point.timestep, before: point.timestep },
            (unconditional, rows - unconditional),
        );
        let first = &mut self.networks.first;
        let denoiser = first.unet.with_controls(first.controls.models())?;
        controls.add_to(&mut inputs, &*denoiser, at, of_image)?;
        references.add_to(&mut inputs, rows)?;
        prompts.add_to(&mut inputs, at, of_image)?;
        let network = NetworkParts::new(job);
        let inputs = network.inputs(now.rows(), images, of_image.1).add_to(inputs);
        let inputs = network.add_skipped(inputs, now.rows(), images, of_image.1);
        let step = GuidedStep::new(&inputs, now.within_step, self.dtype)?;
        let step = step.with_weights(conditions.weights(shape, &self.device)?);
        let x = (latents.to_device(&self.device)? / point.norm())?;
        let output = step.run(&*denoiser, Some(&mut first.recorded), &x, &[point.timestep], None)?;
        Ok(guidance.answer(output, &now, None)?.output.to_device(&Device::Cpu)?)
    }
}
