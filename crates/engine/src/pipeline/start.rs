//! The start of images: noise, or the latents of another image, of which a mask may keep a part.

use candle_core::{Device, Tensor};
use kiln_request::{ImageOptions, Init, InitLatents, Mask, MaskContent, Rule};
use kiln_scheduler::Schedule;

use crate::error::Result;
use crate::pipeline::batch::BatchNoise;
use crate::pipeline::kept::Kept;

/// The latents at the start of a schedule, and the part of the images that is put back after each step.
pub struct Start {
    /// `(n, c, h, w)` in f32 on the denoiser's device, at the schedule's start.
    pub(crate) latents: Tensor,
    pub(crate) kept: Option<Kept>,
    /// Channels besides the latents that the denoiser takes, `(n, e, h, w)` in f32 on its device.
    pub(crate) extra: Option<Tensor>,
}

/// Whether the latents of masked images begin with noise alone: diffusers' inpainting pipelines at strength 1. Those of flow
/// models (`is_flow`) mix image and noise at every strength.
pub(crate) fn is_from_noise(inits: &[&Init], options: &ImageOptions, is_flow: bool) -> bool {
    let is_whole = inits.first().is_some_and(|init| init.is_masked() && init.strength() == Some(1.0));
    is_whole && !is_flow && options.rule == Rule::Diffusers && options.mask_content == MaskContent::Original
}

/// The part of the noise in the first latents of a masked or unmasked image: by ComfyUI's rule the most noise of a schedule has the
/// model's whole variance (`noise_scaling` of `comfy/model_sampling.py`), by AUTOMATIC1111's a sampler on timesteps begins one
/// timestep above its first (`sample_img2img` of `modules/sd_samplers_timesteps.py`).
fn noisy(image: &Tensor, noise: &Tensor, schedule: &Schedule, rule: Rule) -> Result<Tensor> {
    let start = schedule.start();
    match rule {
        // A flow model's latents are a mixture at every level: `CONST.noise_scaling`.
        Rule::Comfy if start == 0 && !schedule.config().is_flow() => {
            let Some(point) = schedule.points().first() else { return Ok(image.clone()) };
            let factor = (point.sigma / point.alpha).hypot(1.0) * point.alpha;
            Ok(((image * point.alpha)? + (noise * factor)?)?)
        }
        Rule::Automatic1111 if schedule.config().is_on_timesteps() => {
            Ok(schedule.add_noise(image, noise, start.saturating_sub(1))?)
        }
        _ => Ok(schedule.add_noise(image, noise, start)?),
    }
}

impl Start {
    /// The start of images of which no part is kept between steps: `latents` `(n, c, h, w)` in f32 on the denoiser's device, at
    /// the schedule's start.
    pub fn of_latents(latents: Tensor) -> Self {
        Self { latents, kept: None, extra: None }
    }

    /// Adds channels besides the latents, `(n, e, h, w)` in f32 on the denoiser's device, if there are any.
    pub fn with_extra(self, extra: Option<Tensor>) -> Self {
        Self { extra, ..self }
    }

    /// The start of images whose job begins with `init`, on `device`; `image` are the latents of their images `(n, c, h, w)`
    /// if there are any. A latent `(c, h, w)` covers `f` by `f` pixels.
    ///
    /// `drawn` is the noise `(n, c, h, w)`; a sample of the images' latents has drawn before. As in diffusers' inpainting
    /// pipelines a masked image draws a sample of the masked image too. Networks with channels for it, for which
    /// `takes_mask` is true, have drawn it. By diffusers' rule they keep nothing between steps.
    pub(crate) fn new(
        inits: &[&Init],
        image: Option<Tensor>,
        (noise, drawn): (&mut BatchNoise, Tensor),
        (schedule, options): (&Schedule, &ImageOptions),
        (shape, f): ((usize, usize, usize), usize),
        (device, takes_mask): (&Device, bool),
    ) -> Result<Self> {
        let unscaled = drawn.clone();
        let drawn = match inits.first().and_then(|init| init.image()) {
            Some(_) if options.noise_multiplier != 1.0 => (drawn * options.noise_multiplier)?,
            _ => drawn,
        };
        let begin =
            |noise: &Tensor| -> Result<Tensor> { Ok(kiln_ops::affine(noise, schedule.init_noise_sigma(), 0.0)?) };
        let Some(image) = image else {
            return Ok(Self::of_latents(begin(&drawn.to_device(device)?)?));
        };
        let masks: Vec<&Mask> = inits.iter().filter_map(|init| init.mask()).collect();
        let is_whole = is_from_noise(inits, options, schedule.config().is_flow());
        let noisy = |image: &Tensor, noise: &Tensor| noisy(image, noise, schedule, options.rule);
        if masks.is_empty() {
            return Ok(Self::of_latents(noisy(&image, &drawn)?.to_device(device)?));
        }
        if !takes_mask
            && inits.iter().any(|init| init.image().is_some_and(|image| image.latents() == InitLatents::Sample))
        {
            noise.sample_of_input(&drawn)?;
        }
        let mask = masks.iter().map(|mask| mask.of_latents(shape, f)).collect::<kiln_request::Result<Vec<_>>>()?;
        let mask = Tensor::cat(&mask, 0)?;
        let inverse = mask.affine(-1.0, 1.0)?;
        let image = match options.mask_content {
            MaskContent::Original | MaskContent::Fill => image,
            MaskContent::Noise => (image.mul(&inverse)? + unscaled.mul(&mask)?)?,
            MaskContent::Nothing => image.mul(&inverse)?,
        };
        let latents = if is_whole { begin(&drawn)? } else { noisy(&image, &drawn)? }.to_device(device)?;
        if takes_mask && options.rule == Rule::Diffusers {
            return Ok(Self::of_latents(latents));
        }
        let kept = Kept::new([image, drawn, mask, inverse], schedule, options, device)?;
        Ok(Self { latents, kept: Some(kept), extra: None })
    }
}
