//! The part of images that stays while the rest is generated again, step by step.

use std::borrow::Borrow;

use candle_core::{DType, Device, Tensor};
use kiln_media::Gray8Image;
use kiln_request::{ImageOptions, Rule};
use kiln_scheduler::{Evaluation, MimicCfg, ModelOutput, Point, Schedule, Stepper};

use crate::error::Result;
use crate::pipeline::soft_inpaint::SoftInpainting;

/// The part of images that stays. All tensors are `(n, c, h, w)` in f32 on the denoiser's device.
pub(crate) struct Kept {
    image: Tensor,
    noise: Tensor,
    /// 1 where latents are generated again.
    mask: Tensor,
    /// 1 where they stay.
    inverse: Tensor,
    blend: Blend,
}

/// Where the image takes the place of what is generated.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Blend {
    /// In the latents after each step, with the noise of the next one: diffusers' inpainting pipelines.
    Latents,
    /// In the images that the network predicts, and in the last latents: AUTOMATIC1111's `CFGDenoiser.forward`
    /// (`modules/sd_samplers_cfg_denoiser.py`, after guidance).
    Images,
    /// In the network's input without noise, and in the last latents: AUTOMATIC1111's samplers on timesteps
    /// (`mask_before_denoising` of `CFGDenoiserTimesteps`, `modules/sd_samplers_timesteps.py`).
    Input,
    /// In the network's input with noise, and in the images that it predicts: ComfyUI's `KSamplerX0Inpaint`
    /// (`comfy/samplers.py`).
    InputAndImages,
    /// Like [`Self::Images`], by AUTOMATIC1111's extension for soft masks, and not in the last latents.
    Soft(SoftInpainting),
}

impl Kept {
    /// `image`, `noise`, `mask` and `inverse` `(n, c, h, w)` in f32 in the host's memory, for a run of `schedule`.
    pub(crate) fn new(
        tensors: [Tensor; 4],
        schedule: &Schedule,
        options: &ImageOptions,
        device: &Device,
    ) -> Result<Self> {
        let blend = match options.rule {
            Rule::Diffusers => Blend::Latents,
            Rule::Automatic1111 if options.soft_inpainting => Blend::Soft(SoftInpainting::new(options)),
            Rule::Automatic1111 if schedule.config().is_on_timesteps() => Blend::Input,
            Rule::Automatic1111 => Blend::Images,
            Rule::Comfy => Blend::InputAndImages,
        };
        let [image, noise, mask, inverse] = tensors.map(|tensor| tensor.to_device(device));
        Ok(Self { image: image?, noise: noise?, mask: mask?, inverse: inverse?, blend })
    }

    /// `image` where the mask keeps it, `latents` where they are generated again.
    fn mix(&self, image: &Tensor, latents: &Tensor) -> Result<Tensor> {
        Ok((image.mul(&self.inverse)? + latents.mul(&self.mask)?)?)
    }

    /// The latents before evaluation `next` of the schedule, or at its end.
    pub(crate) fn put_back(&self, latents: &Tensor, schedule: &Schedule, next: usize) -> Result<Tensor> {
        let is_end = next >= schedule.points().len();
        match self.blend {
            Blend::Latents if !is_end => self.mix(&schedule.add_noise(&self.image, &self.noise, next)?, latents),
            Blend::Latents | Blend::Images | Blend::Input if is_end => self.mix(&self.image, latents),
            _ => Ok(latents.clone()),
        }
    }

    /// The latents that the network sees in the next evaluation; `None` where they are those of the sampler.
    fn seen<S: Borrow<Schedule>>(&self, stepper: &Stepper<S>, evaluation: &Evaluation) -> Result<Option<Tensor>> {
        let latents = evaluation.latents();
        match (self.blend, stepper.point()) {
            (Blend::Input, _) => Ok(Some(self.mix(&self.image, latents)?)),
            (Blend::InputAndImages, Some(point)) => {
                let noisy = ((&self.image * point.alpha)? + (&self.noise * point.sigma)?)?;
                Ok(Some(self.mix(&noisy, latents)?))
            }
            _ => Ok(None),
        }
    }

    /// The evaluation with the input that the network gets.
    pub(crate) fn blend_input<S: Borrow<Schedule>>(
        &self,
        evaluation: Evaluation,
        stepper: &Stepper<S>,
    ) -> Result<Evaluation> {
        let (Some(seen), Some(point)) = (self.seen(stepper, &evaluation)?, stepper.point()) else {
            return Ok(evaluation);
        };
        let mut evaluation = evaluation;
        evaluation.input = (seen / point.norm())?;
        Ok(evaluation)
    }

    /// The denoiser's output for `evaluation` with the image instead of what it predicts where the image stays.
    pub(crate) fn blend_output<S: Borrow<Schedule>>(
        &self,
        answer: ModelOutput,
        stepper: &Stepper<S>,
        evaluation: &Evaluation,
    ) -> Result<ModelOutput> {
        let ModelOutput { output, unconditional, mimic } = answer;
        let f32 = |tensor: Tensor| tensor.to_dtype(DType::F32);
        let blend: Box<dyn Fn(Tensor) -> Result<Tensor>> = match self.blend {
            Blend::Latents => return Ok(ModelOutput { output, unconditional, mimic }),
            Blend::Images => {
                let image = stepper.output_for(&self.image, evaluation)?.mul(&self.inverse)?;
                Box::new(move |output| Ok((&image + f32(output)?.mul(&self.mask)?)?))
            }
            Blend::Soft(options) => Box::new(move |output| {
                let found = stepper.interpret(&f32(output)?, evaluation.latents())?.x0;
                // A flow model begins without any signal; its programs pass the level itself.
                let is_flow = stepper.schedule().config().is_flow();
                let level = |point: Point| if is_flow { point.sigma } else { point.sigma / point.alpha };
                let sigma = stepper.point().map_or(0.0, level);
                let blended = options.blend(&self.image, &found, &self.mask, sigma)?;
                Ok(stepper.output_for(&blended, evaluation)?)
            }),
            Blend::Input | Blend::InputAndImages => {
                let Some(seen) = self.seen(stepper, evaluation)? else {
                    return Ok(ModelOutput { output, unconditional, mimic });
                };
                Box::new(move |output| self.of_seen(&f32(output)?, &seen, stepper, evaluation))
            }
        };
        let unconditional = match self.blend {
            Blend::InputAndImages => unconditional.map(&blend).transpose()?,
            _ => unconditional,
        };
        let mimic = match mimic {
            Some(MimicCfg { output, percentile }) => Some(MimicCfg { output: blend(output)?, percentile }),
            None => None,
        };
        Ok(ModelOutput { output: blend(output)?, unconditional, mimic })
    }

    /// The output for the sampler's latents that says what `output` says for the latents `seen`: AUTOMATIC1111's samplers on
    /// timesteps take its noise, ComfyUI takes its image, in which the input takes its place.
    fn of_seen<S: Borrow<Schedule>>(
        &self,
        output: &Tensor,
        seen: &Tensor,
        stepper: &Stepper<S>,
        evaluation: &Evaluation,
    ) -> Result<Tensor> {
        let found = stepper.interpret(output, seen)?;
        let image = match (self.blend, stepper.point()) {
            (Blend::Input, Some(point)) => ((evaluation.latents() - (found.eps * point.sigma)?)? / point.alpha)?,
            _ => self.mix(&self.image, &found.x0)?,
        };
        Ok(stepper.output_for(&image, evaluation)?)
    }

    /// How much of each image is seen instead of the input after the last step, in the size of the latents; `None` where the
    /// mask alone says that. `latents` are the last ones.
    pub(crate) fn visible(&self, latents: &Tensor) -> Result<Option<Vec<Gray8Image>>> {
        match self.blend {
            Blend::Soft(options) => Ok(Some(options.visible(&self.image, latents, &self.mask)?)),
            _ => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests;
