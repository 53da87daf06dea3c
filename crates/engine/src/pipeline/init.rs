//! What images begin with: noise, another image, or another image of which a mask keeps a part.

use candle_core::{DType, Device, Tensor};
use kiln_scheduler::{Evaluation, MimicCfg, ModelOutput, NoiseSource, Schedule, Stepper};
use serde::ser::{SerializeStruct, Serializer};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::input::{MaskContent, Rule};
use crate::options::ImageOptions;
use crate::pipeline::batch::BatchNoise;

/// What the images of a job begin with.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Init {
    /// Noise alone.
    #[default]
    Noise,
    /// An image with noise on it, as diffusers' image-to-image pipelines have it.
    Image {
        /// The image.
        image: InitImage,
        /// The part of the steps that is made, from the end, more than 0 and at most 1. Less keeps more of the image.
        strength: f64,
    },
    /// An image of which a mask keeps a part: between two steps the latents of that part are the image's, with the noise
    /// of that step. That is how diffusers' inpainting pipelines run networks without channels for a mask. Strength 1
    /// begins with noise alone.
    Masked {
        /// The image.
        image: InitImage,
        /// Where the image is generated again.
        mask: Mask,
        /// The part of the steps that is made, from the end, more than 0 and at most 1.
        strength: f64,
    },
    /// The results of the pass before, enlarged, with noise on them: what the second pass of hires fix begins with.
    FirstPass {
        /// The part of the steps that is made, more than 0 and at most 1; by AUTOMATIC1111's and ComfyUI's rules the part of
        /// the noise, with all steps made.
        strength: f64,
        /// The steps of the pass before where the steps of prompts' schedules are counted on from them, as AUTOMATIC1111
        /// does.
        steps: Option<usize>,
    },
}

/// An image to begin with.
#[derive(Debug, Clone)]
pub struct InitImage {
    pixels: Tensor,
    latents: InitLatents,
}

/// Which latents an image has, of those that the encoder holds possible.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InitLatents {
    /// A random sample, with each image's own generator: diffusers' choice.
    #[default]
    Sample,
    /// The most probable ones. Nothing is drawn.
    Mean,
}

impl InitImage {
    /// From red, green and blue between -1 and 1, `(1, 3, h, w)`.
    ///
    /// # Errors
    /// [`Error::Value`] for another shape, and for values that are not finite.
    pub fn new(pixels: &Tensor, latents: InitLatents) -> Result<Self> {
        Ok(Self { pixels: plain("the initial image", 3, pixels)?, latents })
    }

    /// The pixels, `(1, 3, h, w)` in f32 in the host's memory.
    pub(crate) fn pixels(&self) -> &Tensor {
        &self.pixels
    }

    /// Which latents are wanted.
    pub(crate) fn latents(&self) -> InitLatents {
        self.latents
    }
}

/// Two images are one where they share their pixels.
impl PartialEq for InitImage {
    fn eq(&self, other: &Self) -> bool {
        self.pixels.id() == other.pixels.id() && self.latents == other.latents
    }
}

/// Where an image is generated again.
#[derive(Debug, Clone)]
pub struct Mask {
    pixels: Tensor,
}

impl Mask {
    /// From values of 0, where the image stays, to 1, where it is generated again, `(1, 1, h, w)` for an image of `h` by `w`
    /// pixels. A latent has the value of its upper left pixel. diffusers has nothing between 0 and 1: it takes 0.5 and
    /// more for 1.
    ///
    /// # Errors
    /// [`Error::Value`] for another shape, and for values out of range.
    pub fn new(pixels: &Tensor) -> Result<Self> {
        let pixels = plain("the mask", 1, pixels)?;
        let values = pixels.flatten_all()?.to_vec1::<f32>()?;
        match values.iter().find(|value| !(0.0..=1.0).contains(*value)) {
            None => Ok(Self { pixels }),
            Some(value) => {
                Err(Error::Value { name: "the mask", found: value.to_string(), expected: "values from 0 to 1".into() })
            }
        }
    }

    /// The mask of latents `(c, h, w)` that each cover `f` by `f` pixels, `(1, c, h, w)` in f32.
    fn of_latents(&self, (c, h, w): (usize, usize, usize), f: usize) -> Result<Tensor> {
        let width = w * f;
        let values = self.pixels.flatten_all()?.to_vec1::<f32>()?;
        let corner = |i: usize| values.get(i / w * f * width + i % w * f).copied().unwrap_or(0.0);
        let one: Vec<f32> = (0..h * w).map(corner).collect();
        Ok(Tensor::from_vec(one, (1, 1, h, w), &Device::Cpu)?.broadcast_as((1, c, h, w))?.contiguous()?)
    }
}

/// Two masks are one where they share their pixels.
impl PartialEq for Mask {
    fn eq(&self, other: &Self) -> bool {
        self.pixels.id() == other.pixels.id()
    }
}

/// A tensor `(1, channels, h, w)` in f32 in the host's memory, of finite values.
fn plain(name: &'static str, channels: usize, pixels: &Tensor) -> Result<Tensor> {
    let wrong = |found: String, expected: String| Error::Value { name, found, expected };
    if !matches!(*pixels.dims(), [1, c, h, w] if c == channels && h * w > 0) {
        return Err(wrong(format!("a tensor {:?}", pixels.dims()), format!("a tensor (1, {channels}, h, w)")));
    }
    let pixels = pixels.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()?;
    match crate::pipeline::step::count_not_finite(&pixels)? {
        0 => Ok(pixels),
        count => Err(wrong(format!("{count} values that are not finite"), "finite values".into())),
    }
}

impl Init {
    /// The image that is encoded, if there is one.
    pub(crate) fn image(&self) -> Option<&InitImage> {
        match self {
            Self::Noise | Self::FirstPass { .. } => None,
            Self::Image { image, .. } | Self::Masked { image, .. } => Some(image),
        }
    }

    fn mask(&self) -> Option<&Mask> {
        match self {
            Self::Masked { mask, .. } => Some(mask),
            _ => None,
        }
    }

    /// Whether a mask keeps a part.
    pub(crate) fn is_masked(&self) -> bool {
        self.mask().is_some()
    }

    /// The part of the steps that is made; `None` is all of them.
    pub(crate) fn strength(&self) -> Option<f64> {
        match self {
            Self::Noise => None,
            Self::Image { strength, .. } | Self::Masked { strength, .. } | Self::FirstPass { strength, .. } => {
                Some(*strength)
            }
        }
    }

    /// Refuses what does not fit images of this width and height.
    pub(crate) fn check(&self, width: usize, height: usize) -> Result<()> {
        let sized = |name: &'static str, pixels: Option<&Tensor>| match pixels.map(Tensor::dims) {
            Some(&[_, _, h, w]) if (w, h) != (width, height) => {
                let expected = format!("{width}x{height}, the size of the job's images");
                Err(Error::Value { name, found: format!("{w}x{h}"), expected })
            }
            _ => Ok(()),
        };
        sized("the initial image", self.image().map(|image| &image.pixels))?;
        sized("the mask", self.mask().map(|mask| &mask.pixels))?;
        match self.strength() {
            Some(strength) if !(strength > 0.0 && strength <= 1.0) => {
                let (name, found) = ("the strength", format!("{strength:?}"));
                Err(Error::Value { name, found, expected: "more than 0 and at most 1".into() })
            }
            _ => Ok(()),
        }
    }
}

/// What images of one batch have in common: the kind, the strength, and which latents an image has. Each image has its own
/// pixels.
impl Serialize for Init {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let kind = match self {
            Self::Noise => "noise",
            Self::Image { .. } => "image",
            Self::Masked { .. } => "masked",
            Self::FirstPass { .. } => "first pass",
        };
        let mut init = serializer.serialize_struct("Init", 3)?;
        init.serialize_field("kind", kind)?;
        init.serialize_field("strength", &self.strength())?;
        init.serialize_field("mean", &self.image().map(|image| image.latents == InitLatents::Mean))?;
        init.end()
    }
}

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
                let kept = mask.pixels.lt(0.5)?.to_dtype(DType::F32)?;
                masks.push(mask.of_latents((1, h, w), f)?);
                images.push(InitImage { pixels: image.pixels.broadcast_mul(&kept)?, latents: image.latents });
            }
            Init::Noise | Init::Image { .. } | Init::FirstPass { .. } => {
                masks.push(Tensor::ones((1, 1, h, w), DType::F32, &Device::Cpu)?);
                let latents = init.image().map_or(latents, |image| image.latents);
                images.push(InitImage { pixels: all.clone(), latents });
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
            && inits.iter().any(|init| init.image().is_some_and(|image| image.latents == InitLatents::Sample))
        {
            noise.sample(&drawn)?;
        }
        let mask = masks.iter().map(|mask| mask.of_latents(shape, f)).collect::<Result<Vec<_>>>()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(values: Vec<f32>, shape: (usize, usize, usize, usize)) -> Tensor {
        Tensor::from_vec(values, shape, &Device::Cpu).unwrap()
    }

    #[test]
    fn a_latent_has_the_mask_of_its_upper_left_pixel() {
        let mut pixels = vec![0.0; 4 * 6];
        (pixels[2], pixels[6 * 2 + 4], pixels[1]) = (1.0, 0.5, 1.0);
        let mask = Mask::new(&tensor(pixels, (1, 1, 4, 6))).unwrap();
        let found = mask.of_latents((2, 2, 3), 2).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
        assert_eq!(found, [[0.0, 1.0, 0.0, 0.0, 0.0, 0.5]; 2].concat());
    }

    #[test]
    fn images_that_do_not_fit_are_refused() {
        let image = |shape| InitImage::new(&tensor(vec![0.5; 3 * 4 * 6], shape), InitLatents::Sample);
        let message = image((1, 4, 3, 6)).unwrap_err().to_string();
        assert!(message.contains("the initial image") && message.contains("(1, 3, h, w)"), "{message}");
        let nan = InitImage::new(&tensor(vec![f32::NAN; 3], (1, 3, 1, 1)), InitLatents::Mean).unwrap_err();
        assert!(nan.to_string().contains("3 values that are not finite"), "{nan}");
        assert!(Mask::new(&tensor(vec![2.0], (1, 1, 1, 1))).unwrap_err().to_string().contains("from 0 to 1"));
        let init = |strength| Init::Image { image: image((1, 3, 4, 6)).unwrap(), strength };
        init(0.5).check(6, 4).unwrap();
        assert!(init(0.5).check(4, 6).unwrap_err().to_string().contains("6x4"));
        for strength in [0.0, -1.0, 1.5, f64::NAN] {
            assert!(init(strength).check(6, 4).unwrap_err().to_string().contains("the strength"));
        }
    }
}
