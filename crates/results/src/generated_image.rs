//! A decoded image that is ready to be saved.

use std::time::Duration;

use candle_core::{DType, Tensor};
use kiln_media::{EncodingError, Gray8Image, PngLevel, Rgb8Image, encode_png_at};
use kiln_nn::MetaTensor;
use kiln_nn::ops::f32_values;
use kiln_request::settings::KEY;
use kiln_request::{Job, parameters};

use crate::origin::Origin;
use kiln_setup::error::{Error, Result};

/// The pixels of one image.
pub struct DecodedImage {
    /// `(1, 3, h, w)` of about -1 to 1 in f32, in the host's memory.
    pub image: Tensor,
    /// The latents that were decoded, `(1, c, h, w)` in f32, in the host's memory.
    pub latents: Tensor,
    /// How long decoding took.
    pub decode: Duration,
    /// How much of the image is seen instead of its input, in the size of the latents; `None` if the mask alone decides.
    pub visible: Option<Gray8Image>,
}

impl DecodedImage {
    /// The image with its settings: number `index` of `job`, made with `origin`.
    ///
    /// # Errors
    /// [`Error::Models`] where the decoder gives other channels than red, green and blue.
    pub fn generated(self, job: &Job, origin: &Origin, index: usize) -> Result<GeneratedImage> {
        GeneratedImage::new(job, origin, index, self)
    }
}

/// An image with its metadata.
#[derive(Debug, Clone)]
pub struct GeneratedImage {
    /// Its index in its job, from 0.
    pub index: usize,
    /// Its seed.
    pub seed: u64,
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    /// Red, green and blue of every pixel, row by row.
    pub rgb: Vec<u8>,
    /// The settings in AUTOMATIC1111's format.
    pub parameters: String,
    /// The settings in Kiln's own format, JSON.
    pub settings: String,
    /// The decoded latents, `(1, c, h, w)`, f32.
    pub latents: Tensor,
    /// The compression of its file.
    png_level: PngLevel,
}

impl GeneratedImage {
    /// Converts the decoder's f32 image, whose values outside of -1 to 1 are clamped.
    pub fn new(job: &Job, origin: &Origin, index: usize, image: DecodedImage) -> Result<Self> {
        let DecodedImage { image, latents, visible, .. } = image;
        let channels = image.dim(1)?;
        if channels != 3 {
            let problem = format!("produces images with {channels} channels, expected 3");
            return Err(Error::model(origin.vae_config(), problem));
        }
        let settings = origin.settings(job, index);
        let parameters = parameters(job, &origin.files(&settings, job), index);
        let mut plain = Self::without_settings(index, job.seed_of(index), &image, latents)?;
        if let Some(paste_back) = job.input.as_ref().and_then(|input| input.paste_back.as_ref()) {
            let rgb = std::mem::take(&mut plain.rgb);
            let rgb = Rgb8Image::new(plain.width, plain.height, rgb)?;
            let whole = match &visible {
                Some(visible) => paste_back.apply_seen(rgb, visible)?,
                None => paste_back.apply(rgb)?,
            };
            (plain.width, plain.height, plain.rgb) = (whole.width(), whole.height(), whole.into_data());
        }
        Ok(Self { parameters, settings: settings.to_json(), png_level: origin.png_level(), ..plain })
    }

    /// An image `(1, 3, h, w)` of -1 to 1 in f32 in the host's memory that no job asked for, as a measurement makes it.
    ///
    /// # Errors
    /// [`Error::Candle`] where the image has another shape.
    pub fn without_settings(index: usize, seed: u64, image: &Tensor, latents: Tensor) -> Result<Self> {
        let (_, _, height, width) = image.dims4()?;
        let rgb = to_rgb(image)?;
        let (parameters, settings, png_level) = (String::new(), String::new(), PngLevel::default());
        Ok(Self { index, seed, width, height, rgb, parameters, settings, latents, png_level })
    }

    /// The latents that it was decoded from, `(1, c, h, w)` in row-major order, and that shape. Latents of a GPU are copied to
    /// the host's memory.
    ///
    /// # Errors
    /// Errors of the copy.
    pub fn latents(&self) -> Result<(Vec<f32>, Vec<usize>)> {
        Ok((self.latents.flatten_all()?.to_vec1()?, self.latents.dims().to_vec()))
    }

    /// The bytes of a PNG file with the settings.
    ///
    /// # Errors
    /// Errors of the encoder.
    pub fn png(&self) -> std::result::Result<Vec<u8>, EncodingError> {
        let texts = [("parameters", self.parameters.as_str()), (KEY, self.settings.as_str())];
        encode_png_at((self.width, self.height), &self.rgb, &texts, self.png_level)
    }
}

/// The bytes of an image `(1, 3, h, w)` of -1 to 1 in f32, pixel by pixel and row by row.
pub fn to_rgb(image: &Tensor) -> Result<Vec<u8>> {
    to_pixels(image, to_byte)
}

/// The bytes of an image `(1, c, h, w)` in f32 by the rounding `to_byte`, pixel by pixel and row by row. One thread of an AMD
/// EPYC takes 7 ms for 1024x1024 (2026-11-28). It runs on the caller's thread, so that it must not use rayon's global pool: a process that was
/// forked from one with such a pool would wait for threads that it does not have.
pub fn to_pixels(image: &Tensor, to_byte: impl Fn(f32) -> u8) -> Result<Vec<u8>> {
    let (_, channels, height, width) = image.dims4()?;
    let values = f32_values(image)?;
    let mut bytes = vec![0; channels * height * width];
    // A row of each channel, then of pixels: the compiler makes vector instructions of the first loop alone.
    let mut rows = vec![0; channels * width];
    for (y, pixels) in bytes.chunks_exact_mut((channels * width).max(1)).enumerate() {
        let planes = values.chunks_exact((height * width).max(1));
        for (channel, (row, plane)) in rows.chunks_exact_mut(width).zip(planes).enumerate() {
            for (byte, value) in row.iter_mut().zip(&plane[y * width..]) {
                *byte = to_byte(*value);
            }
            for (byte, value) in pixels[channel..].iter_mut().step_by(channels).zip(row) {
                *byte = *value;
            }
        }
    }
    Ok(bytes)
}

/// Counts the memory of [`to_rgb`] on the CPU: the bytes.
pub fn count_rgb(image: &MetaTensor) {
    let _rgb = image.device().tensor(image.dims(), DType::U8);
}

/// diffusers' rounding: half to even, after clamping.
#[inline]
pub fn to_byte(value: f32) -> u8 {
    // From 2^23 to 2^24, f32 has the integers alone, so that the sum is rounded half to even, and its last bits are the integer. `max`
    // makes 0 of what is not a number.
    const INTEGERS: f32 = 12_582_912.0;
    let unit = (value / 2.0 + 0.5).max(0.0);
    (unit.min(1.0) * 255.0 + INTEGERS).to_bits() as u8
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::{to_byte, to_rgb};

    #[test]
    fn the_range_is_clamped_and_rounded() {
        assert_eq!([-2.0, -1.0, 0.0, 1.0, 7.0, f32::NAN].map(to_byte), [0, 0, 128, 255, 255, 0]);
        for step in -2100..2100 {
            let value = step as f32 / 2040.0;
            let expected = ((value / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8;
            assert_eq!(to_byte(value), expected, "{value}");
        }
    }

    #[test]
    fn planes_become_pixels() {
        let planes: Vec<f32> = [0.0, 1.0, -1.0, 1.0, 1.0, 0.0, -1.0, -1.0, 0.0, 1.0, -1.0, 1.0].to_vec();
        let image = Tensor::from_vec(planes, (1, 3, 2, 2), &Device::Cpu).unwrap();
        assert_eq!(to_rgb(&image).unwrap(), [128, 255, 128, 255, 128, 255, 0, 0, 0, 255, 0, 255]);
    }
}
