//! Images as CLIP's image encoders take them (transformers' `CLIPImageProcessor`).

use crate::{Filter, Region, Result, Rgb8Image};

/// The mean of the training images' colors, red first.
const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
/// Their standard deviation.
const STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

/// The pixels of an image for a CLIP image encoder of `size` by `size` pixels, `(3, size, size)`, red first: the shorter side
/// is resized to `size` (Pillow's bicubic filter; the longer one to `size * long / short`, rounded down), the center is cut out,
/// and each color is normalized by the mean and the standard deviation of the training images.
///
/// # Errors
/// [`crate::Error::Size`] for a size of 0, and for an image whose longer side becomes too large.
pub fn clip_pixels(image: &Rgb8Image, size: usize) -> Result<Vec<f32>> {
    let (width, height) = image.size();
    let (short, long) = (width.min(height), width.max(height));
    let longer = (size as u64 * long as u64 / short.max(1) as u64) as usize;
    let (w, h) = if width <= height { (size, longer) } else { (longer, size) };
    let resized = image.resize(w, h, Filter::Bicubic)?;
    let (left, top) = ((w - size) / 2, (h - size) / 2);
    let center = resized.crop(Region { left, top, right: left + size, bottom: top + size })?;
    let normalized = |value: u8, color: usize| (f32::from(value) / 255.0 - MEAN[color]) / STD[color];
    Ok((0..3).flat_map(|color| center.pixels().map(move |pixel| normalized(pixel[color], color))).collect())
}
