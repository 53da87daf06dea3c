//! A decoded image that is ready to be saved.

use std::time::Duration;

use candle_core::{DType, Tensor};
use kiln_media::{EncodingError, Gray8Image, PngLevel, Rgb8Image, encode_png_at};
use kiln_nn::MetaTensor;
use kiln_request::settings::KEY;
use kiln_request::{Job, parameters};

use crate::origin::Origin;
use kiln_setup::error::{Error, Result};

/// The pixels of one image.
pub struct DecodedImage {
    /// `(1, h, w, 3)` in u8, in the host's memory.
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
    /// The decoder's image with the settings of `job`.
    pub fn new(job: &Job, origin: &Origin, index: usize, image: DecodedImage) -> Result<Self> {
        let DecodedImage { image, latents, visible, .. } = image;
        let channels = image.dim(3)?;
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

    /// An image `(1, h, w, 3)` in u8 in the host's memory that no job asked for, as a measurement makes it.
    ///
    /// # Errors
    /// See [`pixels`].
    pub fn without_settings(index: usize, seed: u64, image: &Tensor, latents: Tensor) -> Result<Self> {
        let image = pixels(image)?;
        let (width, height, rgb) = (image.width(), image.height(), image.into_data());
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

/// The pixels of an image `(1, h, w, 3)` in u8 in the host's memory.
///
/// # Errors
/// Errors of an image with another shape or type.
pub fn pixels(image: &Tensor) -> Result<Rgb8Image> {
    let (_, height, width, _) = image.dims4()?;
    Ok(Rgb8Image::new(width, height, image.flatten_all()?.to_vec1()?)?)
}

/// Counts the memory of an image's bytes.
pub fn count_bytes(image: &MetaTensor) {
    let _bytes = image.device().tensor(image.dims(), DType::U8);
}
