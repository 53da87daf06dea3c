//! Lines of an image, from the difference to its blur.

use crate::{Gray8Image, Result, Rgb8Image};

/// Light lines on black where an image is darker than its surroundings (`lineart_standard` of the ControlNet extension for
/// AUTOMATIC1111's web UI, its legacy preprocessors): with `g` the image blurred by a sigma of 6, the least of
/// `g - x` over the channels, from 0 to 255, divided by the median of its values above 8 (at least 16), times 127.
pub(super) fn lineart_standard(image: &Rgb8Image) -> Result<Gray8Image> {
    const LEAST: f32 = 8.0;
    let blurred = image.opencv_blur_f32(6.0);
    let mut intensity = least_difference(&blurred, image.data().iter().map(|&v| f32::from(v)));
    intensity.iter_mut().for_each(|v| *v = v.clamp(0.0, 255.0));
    let mut strong: Vec<f32> = intensity.iter().copied().filter(|&v| v > LEAST).collect();
    strong.sort_by(f32::total_cmp);
    let median = match strong.len() {
        0 => 0.0,
        len if len % 2 == 1 => strong[len / 2],
        len => (strong[len / 2 - 1] + strong[len / 2]) / 2.0,
    };
    let scale = median.max(16.0);
    let lines = intensity.into_iter().map(|v| (v / scale * 127.0).clamp(0.0, 255.0) as u8).collect();
    Gray8Image::new(image.width(), image.height(), lines)
}

/// White strokes on black (`scribble_xdog` of the same extension, `scripts/preprocessor/model_free_preprocessors.py`): where the
/// least difference over the channels between blurs by sigmas of 5 and 0.5 is above half of `threshold`.
pub(super) fn scribble_xdog(image: &Rgb8Image, threshold: f64) -> Result<Gray8Image> {
    let (narrow, wide) = (image.opencv_blur_f32(0.5), image.opencv_blur_f32(5.0));
    let difference = least_difference(&wide, narrow);
    let stroke = |v: f32| {
        let dog = (255.0 - v).clamp(0.0, 255.0) as u8;
        // The product is of bytes, as in NumPy.
        let doubled = (255 - dog).wrapping_mul(2);
        if f64::from(doubled) > threshold { 255 } else { 0 }
    };
    Gray8Image::new(image.width(), image.height(), difference.into_iter().map(stroke).collect())
}

/// The least of `a - b` over the three channels of each pixel.
fn least_difference(a: &[f32], b: impl IntoIterator<Item = f32>) -> Vec<f32> {
    let differences: Vec<f32> = a.iter().zip(b).map(|(a, b)| a - b).collect();
    let least = |pixel: &[f32; 3]| pixel.iter().copied().fold(f32::INFINITY, f32::min);
    differences.as_chunks::<3>().0.iter().map(least).collect()
}
