//! One evaluation of the denoiser for latents of the caller, for comparisons step by step.

use candle_core::{Device, Tensor};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pipeline::batch::Together;
use crate::pipeline::conditioning::step_of;
use crate::pipeline::event::Stage;
use crate::pipeline::guidance::Guide;
use crate::pipeline::step::GuidedUnet;
use crate::resolved::Job;

impl Engine {
    /// The denoiser's output for `latents` `(n, c, h, w)` at evaluation `index` of the job's schedule, after guidance: what
    /// diffusers' pipelines pass to `scheduler.step`. `(n, c, h, w)` in f32 in the host's memory. `latents` are those of
    /// the job's first batch before the evaluation, not yet scaled for the network.
    ///
    /// A run of many steps amplifies the rounding of the first ones; a single evaluation shows the error of the text
    /// encoders, the U-Net and the guidance alone.
    ///
    /// # Errors
    /// Those of [`Engine::txt2img`], and [`Error::Value`] where the schedule has no such evaluation.
    #[doc(hidden)]
    pub fn evaluate(&mut self, job: &Job, latents: &Tensor, index: usize) -> Result<Tensor> {
        let schedule = job.schedule(&self.model)?;
        let count = schedule.points().len();
        let Some(point) = schedule.points().get(index) else {
            let expected = format!("less than the {count} evaluations of the schedule");
            return Err(Error::Value { name: "evaluation", found: index.to_string(), expected });
        };
        self.set_loras(&job.loras)?;
        let work = self.text().work(job)?;
        self.prepare(work)?;
        let together = Together::of_job(job, 0);
        let steering = self.text().steering(&together);
        let kept = self.arrangement.mode().keeps_all() && !self.device.is_cpu();
        let keep = self.arrangement.keep(Stage::Encode)?;
        let mut conditions = self.text().conditions(job, steering, together.len(), &keep, kept, &mut |_, _| Ok(()))?;
        let guide = Guide::new(job, &conditions, count);
        let on = guide.is_on(index);
        self.make_room_for(Stage::Denoise);
        self.unet_part.enter(&self.arrangement.keep(Stage::Denoise)?)?;
        let f = self.model.vae_config().downscale();
        let shape = (self.model.vae_config().latent_channels, job.height / f, job.width / f);
        let conditioning = conditions.at(step_of(index, count, job.steps), on)?;
        let scale = guide.scale_within_step(on);
        let unet = GuidedUnet::new(&self.unet, Some(&mut self.recorded), &conditioning, scale, self.dtype)?;
        let mut unet = unet.with_weights(conditions.weights(shape, &self.device)?);
        let x = (latents.to_device(&self.device)? / point.norm())?;
        let answer = guide.answer(unet.forward(&x, point.timestep)?, on)?;
        Ok(answer.output.to_device(&Device::Cpu)?)
    }
}
