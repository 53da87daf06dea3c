//! The control images of a batch, as networks take them: pixels that a network embeds, or latents of the autoencoder.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use kiln_media::{Gray8Image, ValueRange};
use kiln_network::{Control as Network, ControlSpec, ControlTakes};
use kiln_request::{Control, InitImage, InitLatents, Mask};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pipeline::batch::{Batch, BatchNoise};
use crate::pipeline::event::OnEvent;
use crate::pipeline::first_stages::encode_each;

/// The latents of control images by the number of the control, `(n, c, h, w)` in f32 in the host's memory; `None` for controls of
/// networks that take pixels.
#[derive(Default)]
pub(crate) struct ControlLatents(Vec<Option<Tensor>>);

impl ControlLatents {
    /// Takes those of control `i`.
    pub(crate) fn take(&mut self, i: usize) -> Option<Tensor> {
        self.0.get_mut(i)?.take()
    }
}

/// Encodes the control images of a batch's pass for the networks that take latents, in the order of the controls. Samples draw from
/// `noise`, which has drawn nothing yet: so do diffusers' pipelines.
///
/// # Errors
/// Errors of the encoder.
pub(crate) fn encode_controls(
    engine: &mut Engine,
    batch: &Batch<'_>,
    noise: &mut BatchNoise,
    on_event: &mut OnEvent<'_>,
) -> Result<ControlLatents> {
    let job = batch.job();
    let mut all = Vec::with_capacity(job.controls.len());
    for (i, control) in job.controls.iter().enumerate() {
        let takes = engine.networks.first.control(control)?.1.spec.takes;
        let ControlTakes::Latents { sample, shifted, masked } = takes else {
            all.push(None);
            continue;
        };
        if !control.using.passes.acts(job.is_second_pass()) {
            all.push(None);
            continue;
        }
        let controls = batch.images().map(|(job, _)| control_of(job, i)).collect::<Result<Vec<_>>>()?;
        let mut images: Vec<InitImage> = Vec::with_capacity(controls.len());
        for (place, control) in controls.iter().enumerate() {
            let known = controls.iter().position(|other| is_same(other, control)).filter(|&known| known < place);
            images.push(match known.and_then(|known| images.get(known)) {
                Some(known) => known.clone(),
                None => init_image(control, (job.width, job.height), sample)?,
            });
        }
        let one = &mut |i: usize| Ok(images[i].clone());
        let latents = encode_each(engine, (images.len(), shifted), one, noise, on_event)?;
        all.push(Some(if masked { with_masks(&latents, &controls)? } else { latents }));
    }
    Ok(ControlLatents(all))
}

/// A control image for the autoencoder. Networks for inpainting get -1 in the hole.
fn init_image(control: &Control, size: (usize, usize), sample: bool) -> Result<InitImage> {
    check_size(control, size)?;
    let planes = match control.hole {
        Some(_) => control.planes()?.into_iter().map(|v| if v < 0.0 { v } else { 2.0 * v - 1.0 }).collect(),
        None => control.image.to_planes(ValueRange::MinusOneToOne),
    };
    let pixels = Tensor::from_vec(planes, (1, 3, size.1, size.0), &Device::Cpu)?;
    Ok(InitImage::new(&pixels, if sample { InitLatents::Sample } else { InitLatents::Mean })?)
}

/// `latents` with the masks as one more channel, 1 where the image stays (diffusers'
/// `StableDiffusion3ControlNetInpaintingPipeline.prepare_image_with_mask`).
fn with_masks(latents: &Tensor, controls: &[&Control]) -> Result<Tensor> {
    let (_, _, h, w) = latents.dims4()?;
    let mask = |control: &&Control| -> Result<Tensor> {
        let Some(hole) = &control.hole else {
            let expected = "preprocess=inpaint: the network takes a mask";
            return Err(Error::value("controls", control.using.net.display(), expected));
        };
        let (width, height): (usize, usize) = Gray8Image::size(hole);
        let pixels = Tensor::from_vec(hole.to_unit(), (1, 1, height, width), &Device::Cpu)?;
        let mask = Mask::new(&pixels)?.of_network((h, w), (height / h.max(1)).max(1))?;
        Ok(mask.le(0.5)?.to_dtype(DType::F32)?)
    };
    let masks = controls.iter().map(mask).collect::<Result<Vec<_>>>()?;
    Ok(Tensor::cat(&[latents, &Tensor::cat(&masks, 0)?], 1)?)
}

/// A network's result for the control images number `i` of the jobs of a batch.
pub(crate) fn embed_images(
    network: (&dyn Network, &ControlSpec),
    batch: &Batch<'_>,
    i: usize,
    (device, dtype): (&Device, DType),
) -> Result<Vec<Tensor>> {
    let mut known: Vec<(&Control, Vec<Tensor>)> = Vec::new();
    let mut rows: Vec<Vec<Tensor>> = Vec::with_capacity(batch.len());
    for (job, _) in batch.images() {
        let control = control_of(job, i)?;
        let made = match known.iter().find(|(other, _)| is_same(other, control)) {
            Some((_, made)) => made.clone(),
            None => {
                let pixels = pixels(network.1, control, (job.width, job.height), (device, dtype))?;
                let made = network.0.embed(&pixels)?;
                known.push((control, made.clone()));
                made
            }
        };
        rows.push(made);
    }
    let Some(first) = rows.first() else { return Ok(Vec::new()) };
    let joined = |k: usize| -> Result<Tensor> {
        let parts: Vec<&Tensor> = rows.iter().filter_map(|row| row.get(k)).collect();
        match &parts[..] {
            [one] => Ok((*one).clone()),
            all => Ok(Tensor::cat(all, 0)?),
        }
    };
    (0..first.len()).map(joined).collect()
}

/// Control number `i` of a job.
fn control_of(job: &kiln_request::Job, i: usize) -> Result<&Control> {
    job.controls.get(i).ok_or_else(|| {
        let found = format!("{} controls", job.controls.len());
        Error::value("controls", found, "as many as the other images of the batch have")
    })
}

/// Whether two controls have one image.
fn is_same(one: &Control, other: &Control) -> bool {
    Arc::ptr_eq(&one.image, &other.image) && one.hole == other.hole
}

/// Refuses an image of another size than the job's.
fn check_size(control: &Control, size: (usize, usize)) -> Result<()> {
    let (width, height) = control.image.size();
    if (width, height) != size {
        let expected = format!("{}x{}, the size of the job's images", size.0, size.1);
        return Err(Error::value("controls", format!("an image of {width}x{height}"), expected));
    }
    Ok(())
}

/// A control image as a network takes it, `(1, c, h, w)`: a network for gray ones gets the luminance.
fn pixels(
    spec: &ControlSpec,
    control: &Control,
    size: (usize, usize),
    (device, dtype): (&Device, DType),
) -> Result<Tensor> {
    check_size(control, size)?;
    let (channels, planes) = match spec.takes {
        ControlTakes::Pixels { channels: 1 } => (1, control.luminance()),
        _ => (3, control.planes()?),
    };
    let pixels = Tensor::from_vec(planes, (1, channels, size.1, size.0), &Device::Cpu)?;
    Ok(pixels.to_device(device)?.to_dtype(dtype)?)
}
