//! The reference images of a group of images: their latents, which the denoiser gets at every evaluation.

use candle_core::{Device, Tensor};
use kiln_media::ValueRange;
use kiln_models::ExtraChannels;
use kiln_network::Inputs;
use kiln_network::slots::REFERENCE;
use kiln_request::{InitImage, InitLatents, Job, Reference};

use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::pipeline::batch::{Batch, BatchNoise};
use crate::pipeline::event::OnEvent;
use crate::pipeline::first_stages::encode_each;

/// The latents of the reference images in their order, `(n, c, h, w)` each in f32 on the denoiser's device.
#[derive(Default)]
pub(crate) struct ReferenceInputs(Vec<Tensor>);

impl ReferenceInputs {
    /// Adds them for `rows` rows of each image.
    pub(crate) fn add_to(&self, inputs: &mut Inputs, rows: usize) -> Result<()> {
        for (i, latents) in self.0.iter().enumerate() {
            inputs.add(REFERENCE, i, latents.repeat((rows, 1, 1, 1))?);
        }
        Ok(())
    }
}

/// Encodes the reference images of a batch to the means of their latents, if the denoiser takes them as tokens. Nothing is drawn.
///
/// # Errors
/// Errors of the encoder.
pub(crate) fn encode_references(
    engine: &mut Engine,
    batch: &Batch<'_>,
    noise: &mut BatchNoise,
    on_event: &mut OnEvent<'_>,
) -> Result<ReferenceInputs> {
    let count = if batch.job().extra_channels == ExtraChannels::None { batch.job().references.len() } else { 0 };
    let mut all = Vec::with_capacity(count);
    for i in 0..count {
        let images = reference_images(batch, i, InitLatents::Mean)?;
        let one = &mut |i: usize| Ok(images[i].clone());
        let latents = encode_each(engine, (images.len(), true), one, noise, on_event)?;
        all.push(latents.to_device(&engine.device)?);
    }
    Ok(ReferenceInputs(all))
}

/// Reference image number `i` of each image of a batch, for the encoder.
///
/// # Errors
/// [`Error::Value`] if a job has none.
pub(crate) fn reference_images(batch: &Batch<'_>, i: usize, latents: InitLatents) -> Result<Vec<InitImage>> {
    let references = batch.images().map(|(job, _)| reference_of(job, i)).collect::<Result<Vec<_>>>()?;
    let mut images: Vec<InitImage> = Vec::with_capacity(references.len());
    for (place, reference) in references.iter().enumerate() {
        let known = references.iter().position(|other| other.image == reference.image);
        images.push(match known.filter(|&known| known < place).and_then(|known| images.get(known)) {
            Some(known) => known.clone(),
            None => init_image(reference, latents)?,
        });
    }
    Ok(images)
}

/// Reference image number `i` of a job.
fn reference_of(job: &Job, i: usize) -> Result<&Reference> {
    job.references.get(i).ok_or_else(|| {
        let found = format!("{} images", job.references.len());
        Error::value("references", found, "as many as the other images of the batch have")
    })
}

fn init_image(reference: &Reference, latents: InitLatents) -> Result<InitImage> {
    let (width, height) = reference.image.size();
    let planes = reference.image.to_planes(ValueRange::MinusOneToOne);
    let pixels = Tensor::from_vec(planes, (1, 3, height, width), &Device::Cpu)?;
    Ok(InitImage::new(&pixels, latents)?)
}
