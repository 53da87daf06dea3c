//! The reference images of a group of images: their latents, which the denoiser gets at every evaluation.

use std::collections::VecDeque;
use std::sync::Arc;

use candle_core::{Device, Tensor};
use kiln_media::{Rgb8Image, ValueRange};
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

/// The bytes of images and latents that are kept.
const KEPT_BYTES: usize = 32 << 20;

/// The reference images that were encoded last, with their latents `(1, c, h, w)` in f32 in the host's memory: further batches
/// with them need no encoder.
#[derive(Default)]
pub(crate) struct EncodedReferences(VecDeque<(Arc<Rgb8Image>, Tensor)>);

impl EncodedReferences {
    fn find(&self, image: &Rgb8Image) -> Option<&Tensor> {
        self.0.iter().find(|(known, _)| **known == *image).map(|(_, latents)| latents)
    }

    /// Adds images, which are not known, and drops the oldest ones.
    fn keep(&mut self, encoded: Vec<(Arc<Rgb8Image>, Tensor)>) {
        self.0.extend(encoded);
        let bytes = |(image, latents): &(Arc<Rgb8Image>, Tensor)| {
            let (width, height) = image.size();
            3 * width * height + size_of::<f32>() * latents.elem_count()
        };
        let mut sum: usize = self.0.iter().map(bytes).sum();
        while sum > KEPT_BYTES {
            sum -= self.0.pop_front().as_ref().map_or(sum, bytes);
        }
    }
}

/// Encodes the reference images of a batch to the means of their latents, but for those that are known, if the denoiser takes them as
/// tokens. Nothing is drawn.
///
/// # Errors
/// Errors of the encoder.
pub(crate) fn encode_references(
    engine: &mut Engine,
    batch: &Batch<'_>,
    noise: &mut BatchNoise,
    on_event: &mut OnEvent<'_>,
) -> Result<ReferenceInputs> {
    let count = batch.job().token_references().len();
    let mut all = Vec::with_capacity(count);
    for i in 0..count {
        let references = batch.images().map(|(job, _)| reference_of(job, i)).collect::<Result<Vec<_>>>()?;
        let mut new: Vec<Arc<Rgb8Image>> = Vec::new();
        for Reference { image, .. } in &references {
            if engine.networks.references.find(image).is_none() && !new.contains(image) {
                new.push(image.clone());
            }
        }
        let mut encoded = Vec::with_capacity(new.len());
        if !new.is_empty() {
            let one = &mut |k: usize| init_image(&new[k], InitLatents::Mean);
            let latents = encode_each(engine, (new.len(), true), one, noise, on_event)?;
            for (k, image) in new.iter().enumerate() {
                encoded.push((image.clone(), latents.narrow(0, k, 1)?.force_contiguous()?));
            }
        }
        let known = &engine.networks.references;
        let fresh = |image: &Rgb8Image| encoded.iter().find(|(new, _)| **new == *image).map(|(_, latents)| latents);
        let rows: Vec<&Tensor> =
            references.iter().filter_map(|row| known.find(&row.image).or_else(|| fresh(&row.image))).collect();
        all.push(Tensor::cat(&rows, 0)?.to_device(&engine.device)?);
        engine.networks.references.keep(encoded);
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
            None => init_image(&reference.image, latents)?,
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

fn init_image(image: &Rgb8Image, latents: InitLatents) -> Result<InitImage> {
    let (width, height) = image.size();
    let planes = image.to_planes(ValueRange::MinusOneToOne);
    let pixels = Tensor::from_vec(planes, (1, 3, height, width), &Device::Cpu)?;
    Ok(InitImage::new(&pixels, latents)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_images_are_dropped() {
        let image = |value: u8| Arc::new(Rgb8Image::new(1024, 1024, vec![value; 3 << 20]).unwrap());
        let latents = Tensor::zeros((1, 16, 128, 128), candle_core::DType::F32, &Device::Cpu).unwrap();
        let mut known = EncodedReferences::default();
        for value in 0..9 {
            assert!(known.find(&image(value)).is_none());
            known.keep(vec![(image(value), latents.clone())]);
        }
        assert!(known.find(&image(0)).is_none() && known.find(&image(1)).is_some() && known.find(&image(8)).is_some());
        // An image that is larger than all that is kept leaves no other.
        let large = Arc::new(Rgb8Image::new(4096, 4096, vec![1; 3 << 24]).unwrap());
        known.keep(vec![(large.clone(), latents)]);
        assert!(known.0.is_empty());
    }
}
