//! Images as CLIP's image encoders take them (transformers' `CLIPImageProcessor`).

use std::fmt::Display;

use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};

use crate::{Error, Region, Result, Rgb8Image};

/// The mean of the training images' colors, red first.
const MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
/// Their standard deviation.
const STD: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

/// The pixels of an image for a CLIP image encoder of `size` by `size` pixels, `(3, size, size)`, red first: the shorter side
/// is resized to `size` (torchvision's bicubic filter; the longer one to `size * long / short`, rounded down), the center is
/// cut out, and each color is normalized by the mean and the standard deviation of the training images.
///
/// # Errors
/// [`crate::Error::Size`] for a size of 0, and for an image whose longer side becomes too large.
pub fn clip_pixels(image: &Rgb8Image, size: usize) -> Result<Vec<f32>> {
    let (width, height) = image.size();
    let (short, long) = (width.min(height), width.max(height));
    let longer = (size as u64 * long as u64 / short.max(1) as u64) as usize;
    let (w, h) = if width <= height { (size, longer) } else { (longer, size) };
    let resized = bicubic(image, w, h)?;
    let (left, top) = ((w - size) / 2, (h - size) / 2);
    Ok(normalized(&resized.crop(Region { left, top, right: left + size, bottom: top + size })?))
}

/// The pixels of an image for an image encoder that takes any size, `(3, height, width)`, red first: like [`clip_pixels`], but the whole
/// image is resized (transformers' `Qwen2VLImageProcessor`).
///
/// # Errors
/// [`crate::Error::Size`] for a size of 0 or one that is too large.
pub fn clip_pixels_of_size(image: &Rgb8Image, width: usize, height: usize) -> Result<Vec<f32>> {
    Ok(normalized(&bicubic(image, width, height)?))
}

/// The planes of an image, each color normalized by the mean and the standard deviation of the training images.
fn normalized(image: &Rgb8Image) -> Vec<f32> {
    let normalized = |value: u8, color: usize| (f32::from(value) / 255.0 - MEAN[color]) / STD[color];
    (0..3).flat_map(|color| image.pixels().map(move |pixel| normalized(pixel[color], color))).collect()
}

/// The image as torchvision resizes bytes with the bicubic filter (a = -0.5) and `antialias`: along the rows, then along the
/// columns, with bytes between and weights of 15 bits, which are those of `fast_image_resize`. Pillow's have 22 bits, so that a
/// value in 150 differs by one level ([`Rgb8Image::resize`]).
fn bicubic(image: &Rgb8Image, width: usize, height: usize) -> Result<Rgb8Image> {
    Rgb8Image::filled(width, height, [0; 3])?; // before anything is computed
    one_pass(&one_pass(image, width, image.height())?, width, height)
}

/// The image resized along one direction: `fast_image_resize` would begin with the columns.
fn one_pass(image: &Rgb8Image, width: usize, height: usize) -> Result<Rgb8Image> {
    let mut out = Rgb8Image::filled(width, height, [0; 3])?;
    let failed = |error: &dyn Display| Error::Size(format!("the image cannot be resized: {error}"));
    let side = |side: usize| u32::try_from(side).map_err(|error| failed(&error));
    let source = TypedImageRef::<U8x3>::from_buffer(side(image.width())?, side(image.height())?, image.data())
        .map_err(|error| failed(&error))?;
    let mut target =
        TypedImage::<U8x3>::from_buffer(side(width)?, side(height)?, out.data_mut()).map_err(|error| failed(&error))?;
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::CatmullRom));
    // Typed: the other method compiles the code of all pixel types, which takes two minutes.
    Resizer::new().resize_typed(&source, &mut target, &options).map_err(|error| failed(&error))?;
    drop(target);
    Ok(out)
}
