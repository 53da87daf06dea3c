//! The masked content "fill": colors from around the mask.

use crate::{Gray8Image, Result, Rgb8Image, Rgba8Image};

/// Gaussian radii and how often each blurred image is composited (`fill` of AUTOMATIC1111's `modules/masking.py`, v1.10).
const STEPS: [(f32, usize); 6] = [(256.0, 1), (64.0, 1), (16.0, 2), (4.0, 4), (2.0, 2), (0.0, 1)];

/// The image with the masked region replaced by colors from around it: the unmasked part, blurred with six radii, composited
/// from the widest to the narrowest. 255 of the mask replaces, 0 keeps.
///
/// # Errors
/// [`crate::Error::Size`] if image and mask differ in size.
pub fn fill_masked(image: &Rgb8Image, mask: &Gray8Image) -> Result<Rgb8Image> {
    image.check_same_size(mask, "the mask")?;
    let opaque = image.map(|[r, g, b]| [r, g, b, 255]);
    let mut kept = Rgba8Image::filled(image.width(), image.height(), [0; 4])?;
    kept.paste_through(&opaque, &mask.invert())?; // already multiplied by alpha
    let mut filled = Rgba8Image::filled(image.width(), image.height(), [0; 4])?;
    for (radius, times) in STEPS {
        let blurred = kept.pillow_gaussian_blur(radius, radius)?.unpremultiply();
        for _ in 0..times {
            filled.composite(&blurred);
        }
    }
    Ok(filled.to_rgb())
}
