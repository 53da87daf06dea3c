//! A picture that is ready to be saved.

use candle_core::{DType, Tensor};
use kiln_media::Rgb8Image;
use kiln_nn::{MetaTensor, TensorLike};

use crate::error::{Error, Result};
use crate::parameters::parameters;
use crate::resolved::Job;
use crate::settings::Origin;

/// A picture with all that is known of it.
#[derive(Debug, Clone)]
pub struct Picture {
    /// Its number in its job, from 0.
    pub index: usize,
    /// Its seed.
    pub seed: u64,
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Red, green and blue of every pixel, row by row.
    pub rgb: Vec<u8>,
    /// The settings as AUTOMATIC1111 writes them.
    pub parameters: String,
    /// What made it, as Kiln reads it back: JSON.
    pub settings: String,
    /// The latents that were decoded, `(1, c, h, w)`, f32.
    pub(crate) latents: Tensor,
}

impl Picture {
    /// From an image `(1, 3, h, w)` of -1 to 1 in f32 in the host's memory; what lies outside is clamped.
    pub(crate) fn new(job: &Job, origin: &Origin, index: usize, image: &Tensor, latents: Tensor) -> Result<Self> {
        let (_, channels, height, width) = image.dims4()?;
        if channels != 3 {
            let problem = format!("gives pictures of {channels} channels, expected 3");
            return Err(Error::model(origin.vae_config(), problem));
        }
        let rgb = to_rgb(image)?;
        let (width, height, rgb) = match job.input.as_ref().and_then(|input| input.paste_back.as_ref()) {
            None => (width, height, rgb),
            Some(paste_back) => {
                let whole = paste_back.apply(Rgb8Image::new(width, height, rgb)?)?;
                (whole.width(), whole.height(), whole.into_data())
            }
        };
        let seed = job.seed_of(index);
        let settings = origin.settings(job, index);
        let parameters = parameters(job, &origin.files(&settings), index);
        Ok(Self { index, seed, width, height, rgb, parameters, settings: settings.to_json(), latents })
    }
}

/// The bytes of an image `(1, 3, h, w)` of -1 to 1 in f32, pixel by pixel and row by row.
pub(crate) fn to_rgb(image: &Tensor) -> Result<Vec<u8>> {
    let pixels = image.squeeze(0)?.permute((1, 2, 0))?.flatten_all()?; // (h, w, 3)
    Ok(pixels.to_vec1::<f32>()?.into_iter().map(to_byte).collect())
}

/// Counts what [`to_rgb`] takes on the CPU: the pixels in their order, their values, and a byte for each.
pub(crate) fn count_rgb(image: &MetaTensor) -> Result<()> {
    let _pixels_and_values = [image.copy()?, image.copy()?];
    let _rgb = image.device().tensor(image.dims(), DType::U8);
    Ok(())
}

/// diffusers' rounding: half to even, after the range has been clamped.
fn to_byte(value: f32) -> u8 {
    ((value / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8
}

#[cfg(test)]
mod tests {
    use super::to_byte;

    #[test]
    fn the_range_is_clamped_and_rounded() {
        assert_eq!([-2.0, -1.0, 0.0, 1.0, 7.0].map(to_byte), [0, 0, 128, 255, 255]);
    }
}
