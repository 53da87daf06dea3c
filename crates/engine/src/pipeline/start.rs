//! The start of images: noise, or the latents of another image, of which a mask may keep a part.

use candle_core::{DType, Device, Tensor};
use kiln_request::{ImageOptions, Init, InitImage, InitLatents, Mask, MaskContent, Rule};
use kiln_scheduler::{Evaluation, MimicCfg, ModelOutput, NoiseSource, Schedule, Stepper};

use crate::error::{Error, Result};
use crate::pipeline::batch::BatchNoise;

/// The latents at the start of a schedule, and the part of the images that is put back after each step.
pub struct Start {
    /// `(n, c, h, w)` in f32 on the denoiser's device, at the schedule's start.
    pub(crate) latents: Tensor,
    pub(crate) kept: Option<Kept>,
    /// Channels besides the latents that the denoiser takes, `(n, e, h, w)` in f32 on its device.
    pub(crate) extra: Option<Tensor>,
}

/// The part of images that stays while the rest is generated again. All tensors are `(n, c, h, w)` in f32.
pub(crate) struct Kept {
    image: Tensor,
    noise: Tensor,
    /// 1 where latents are generated again.
    mask: Tensor,
    /// 1 where they stay.
    inverse: Tensor,
    /// Whether the image is put into the denoiser's predictions, as AUTOMATIC1111 does (`CFGDenoiser.forward` of
    /// `modules/sd_samplers_cfg_denoiser.py` v1.10, after guidance), and into the latents after the last step alone.
    in_output: bool,
}

/// Whether the latents of masked images begin with noise alone: diffusers' inpainting pipelines at strength 1.
pub(crate) fn is_from_noise(inits: &[&Init], options: &ImageOptions) -> bool {
    let is_whole = inits.first().is_some_and(|init| init.is_masked() && init.strength() == Some(1.0));
    is_whole && options.rule == Rule::Diffusers && options.mask_content == MaskContent::Original
}

/// The mask `(n, 1, h, w)` and the masked image `(1, 3, H, W)` of each image, for networks with channels for them. An image
/// without a mask is regenerated as a whole, and its masked image is gray (diffusers' `prepare_mask_and_masked_image`,
/// `txt2img_image_conditioning` of AUTOMATIC1111's `modules/processing.py`).
pub(crate) fn mask_channels(
    inits: &[&Init],
    (h, w): (usize, usize),
    f: usize,
    latents: InitLatents,
) -> Result<(Tensor, Vec<InitImage>)> {
    let all = Tensor::zeros((1, 3, h * f, w * f), DType::F32, &Device::Cpu)?;
    let (mut masks, mut images) = (Vec::with_capacity(inits.len()), Vec::with_capacity(inits.len()));
    for init in inits {
        match init {
            Init::Masked { image, mask, .. } => {
                let kept = mask.pixels().lt(0.5)?.to_dtype(DType::F32)?;
                masks.push(mask.of_latents((1, h, w), f)?);
                images.push(image.with_pixels(image.pixels().broadcast_mul(&kept)?));
            }
            Init::Noise | Init::Image { .. } => {
                masks.push(Tensor::ones((1, 1, h, w), DType::F32, &Device::Cpu)?);
                let latents = init.image().map_or(latents, |image| image.latents());
                images.push(InitImage::new(&all, latents)?);
            }
        }
    }
    Ok((Tensor::cat(&masks, 0)?, images))
}

impl Start {
    /// The start of images of which no part is kept between steps: `latents` `(n, c, h, w)` in f32 on the denoiser's device, at
    /// the schedule's start.
    pub fn of_latents(latents: Tensor) -> Self {
        Self { latents, kept: None, extra: None }
    }

    /// The start of images whose job begins with `init`, on `device`; `image` are the latents of their images `(n, c, h, w)`
    /// where there are any. A latent `(c, h, w)` covers `f` by `f` pixels.
    ///
    /// `drawn` is the noise `(n, c, h, w)`; a sample of the images' latents has drawn before. As in diffusers' inpainting
    /// pipelines a masked image draws a sample of the masked image too. Networks with channels for it, for which
    /// `takes_mask` is true, have drawn it, and keep nothing between steps.
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
        let begin = |noise: &Tensor| -> Result<Tensor> { Ok((noise * schedule.init_noise_sigma())?) };
        let Some(image) = image else {
            return Ok(Self::of_latents(begin(&drawn.to_device(device)?)?));
        };
        let masks: Vec<&Mask> = inits.iter().filter_map(|init| init.mask()).collect();
        let is_whole = is_from_noise(inits, options);
        let noisy =
            |image: &Tensor, noise: &Tensor| Ok::<_, Error>(schedule.add_noise(image, noise, schedule.start())?);
        if masks.is_empty() {
            return Ok(Self::of_latents(noisy(&image, &drawn)?.to_device(device)?));
        }
        if !takes_mask
            && inits.iter().any(|init| init.image().is_some_and(|image| image.latents() == InitLatents::Sample))
        {
            noise.sample(&drawn)?;
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
        if takes_mask {
            return Ok(Self::of_latents(latents));
        }
        let there = |tensor: Tensor| tensor.to_device(device);
        let in_output = options.rule == Rule::Automatic1111;
        let kept = Kept {
            image: there(image)?,
            noise: there(drawn)?,
            mask: there(mask)?,
            inverse: there(inverse)?,
            in_output,
        };
        Ok(Self { latents, kept: Some(kept), extra: None })
    }
}

impl Kept {
    /// The latents before evaluation `next` of the schedule, or at its end: what stays is put back, with the noise of that
    /// evaluation.
    pub(crate) fn put_back(&self, latents: &Tensor, schedule: &Schedule, next: usize) -> Result<Tensor> {
        if self.in_output && next < schedule.points().len() {
            return Ok(latents.clone());
        }
        let image = match next < schedule.points().len() {
            true => schedule.add_noise(&self.image, &self.noise, next)?,
            false => self.image.clone(),
        };
        Ok((image.mul(&self.inverse)? + latents.mul(&self.mask)?)?)
    }

    /// The denoiser's output for `evaluation` with the image in the place of what it predicts where the image stays.
    pub(crate) fn blend_output<S: std::borrow::Borrow<Schedule>>(
        &self,
        answer: ModelOutput,
        stepper: &Stepper<S>,
        evaluation: &Evaluation,
    ) -> Result<ModelOutput> {
        if !self.in_output {
            return Ok(answer);
        }
        let image = stepper.output_for(&self.image, evaluation)?.mul(&self.inverse)?;
        let blend =
            |output: Tensor| -> Result<Tensor> { Ok((image.clone() + output.to_dtype(DType::F32)?.mul(&self.mask)?)?) };
        let ModelOutput { output, unconditional, mimic } = answer;
        let mimic = match mimic {
            Some(MimicCfg { output, percentile }) => Some(MimicCfg { output: blend(output)?, percentile }),
            None => None,
        };
        Ok(ModelOutput { output: blend(output)?, unconditional, mimic })
    }
}
