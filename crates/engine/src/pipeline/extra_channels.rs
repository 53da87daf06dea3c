//! The channels that a denoiser takes besides the latents: a mask and the latents of the masked image, or those of a control image.

use candle_core::{DType, Device, Tensor};
use kiln_models::ExtraChannels;
use kiln_request::{ImageOptions, Init, InitImage, InitLatents, Job};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pipeline::batch::{Batch, BatchNoise};
use crate::pipeline::event::OnEvent;
use crate::pipeline::first_stages::encode_images;
use crate::pipeline::reference_inputs::reference_images;

/// The latents of control images, `(n, c, h, w)` in f32 in the host's memory, if the denoiser takes them as channels. A sample is
/// drawn before anything else, but for that of the masked image of inpainting (`FluxControlInpaintPipeline` of diffusers).
///
/// # Errors
/// [`Error::Value`] for a job without a control image or with several, and errors of the encoder.
pub(crate) fn control_channels(
    engine: &mut Engine,
    batch: &Batch<'_>,
    noise: &mut BatchNoise,
    on_event: &mut OnEvent<'_>,
) -> Result<Option<Tensor>> {
    let job = batch.job();
    if job.extra_channels != ExtraChannels::Control {
        return Ok(None);
    }
    let images = reference_images(batch, 0, InitLatents::Sample)?;
    let size = |image: &InitImage| image.pixels().dims().get(2..).map(<[usize]>::to_vec);
    if let Some(other) = images.iter().map(size).find(|size| size.as_deref() != Some(&[job.height, job.width])) {
        let found = format!("an image of height and width {:?}", other.unwrap_or_default());
        let expected = format!("{}x{}, the size of the job's images", job.width, job.height);
        return Err(Error::value("references", found, expected));
    }
    if job.init.is_masked() && job.init.image().is_some_and(|image| image.latents() == InitLatents::Sample) {
        let (c, f) = (engine.model.vae_config().latent_channels, engine.model.vae_config().downscale());
        let like = Tensor::zeros((images.len(), c, job.height / f, job.width / f), DType::F32, &Device::Cpu)?;
        noise.sample_of_input(&like)?;
    }
    encode_images(engine, &images.iter().collect::<Vec<_>>(), noise, on_event)
}

/// The mask and the latents of the masked image of each image, `(n, e, h, w)` in f32 in the host's memory, if the denoiser takes
/// them as channels. `(h, w)` is the size of the latents.
///
/// # Errors
/// Errors of the encoder.
pub(crate) fn masked_channels(
    engine: &mut Engine,
    (job, inits): (&Job, &[&Init]),
    size: (usize, usize),
    noise: &mut BatchNoise,
    on_event: &mut OnEvent<'_>,
) -> Result<Option<Tensor>> {
    if !job.extra_channels.has_mask() {
        return Ok(None);
    }
    let is_of_pixels = job.extra_channels == ExtraChannels::PixelMask;
    let f = engine.model.vae_config().downscale();
    let (mask, images) = mask_channels(inits, size, (f, is_of_pixels), &job.image)?;
    let Some(masked) = encode_images(engine, &images.iter().collect::<Vec<_>>(), noise, on_event)? else {
        return Ok(None);
    };
    let parts = if is_of_pixels { [masked, mask] } else { [mask, masked] };
    Ok(Some(Tensor::cat(&parts, 1)?))
}

/// The mask `(n, m, h, w)` and the masked image `(1, 3, H, W)` of each image, for networks with channels for them. `is_of_pixels`
/// says whether the mask has a channel for each of the `f` by `f` pixels of a latent, or one. An image without a mask is
/// regenerated as a whole, and its masked image is gray (diffusers' `prepare_mask_and_masked_image`,
/// `txt2img_image_conditioning` of AUTOMATIC1111's `modules/processing.py`). With a `mask_weight` below 1 the masked image
/// keeps a part of its masked pixels (`inpainting_image_conditioning` there).
fn mask_channels(
    inits: &[&Init],
    (h, w): (usize, usize),
    (f, is_of_pixels): (usize, bool),
    options: &ImageOptions,
) -> Result<(Tensor, Vec<InitImage>)> {
    let (latents, weight) = (options.init_noise.unwrap_or_default(), options.mask_weight);
    let all = Tensor::zeros((1, 3, h * f, w * f), DType::F32, &Device::Cpu)?;
    let whole = Tensor::ones((1, if is_of_pixels { f * f } else { 1 }, h, w), DType::F32, &Device::Cpu)?;
    let (mut masks, mut images) = (Vec::with_capacity(inits.len()), Vec::with_capacity(inits.len()));
    for init in inits {
        match init {
            Init::Masked { image, mask, .. } => {
                let kept = match mask.has_latents() {
                    true => mask.pixels().affine(-1.0, 1.0)?,
                    false => mask.pixels().lt(0.5)?.to_dtype(DType::F32)?,
                };
                masks.push(if is_of_pixels { mask.of_pixels((h, w), f)? } else { mask.of_network((h, w), f)? });
                let masked = image.pixels().broadcast_mul(&kept)?;
                images.push(image.with_pixels(weighted(image.pixels(), &masked, weight)?));
            }
            Init::Image { image, .. } if weight < 1.0 => {
                masks.push(whole.clone());
                images.push(image.with_pixels(weighted(image.pixels(), &all, weight)?));
            }
            Init::Noise | Init::Image { .. } | Init::FirstPass { .. } => {
                masks.push(whole.clone());
                let latents = init.image().map_or(latents, |image| image.latents());
                images.push(InitImage::new(&all, latents)?);
            }
        }
    }
    Ok((Tensor::cat(&masks, 0)?, images))
}

/// `a` at a weight of 0, the bits of `b` at 1, as PyTorch's `lerp`.
fn weighted(a: &Tensor, b: &Tensor, weight: f64) -> Result<Tensor> {
    Ok(match weight {
        1.0 => b.clone(),
        weight if weight < 0.5 => (a + ((b - a)? * weight)?)?,
        weight => (b - ((b - a)? * (1.0 - weight))?)?,
    })
}
