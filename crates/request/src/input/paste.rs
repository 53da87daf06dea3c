//! The result of inpainting in its place in the input.

use kiln_media::{Filter, Gray8Image, Image8, Region, ResizeMode, Rgb8Image};

use crate::error::Result;

/// The image and mask that are pasted around the masked part of a result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PasteBack {
    /// The input, of any size.
    pub(super) original: Rgb8Image,
    /// Of the same size: 255 where the result is seen, 0 where the input is, bit for bit.
    pub(super) mask: Gray8Image,
    /// The part of the input that the network saw; `None` is all of it, in the result's own size.
    pub(super) region: Option<Region>,
}

impl PasteBack {
    /// Pixels of the whole input.
    pub(super) fn pixels(&self) -> usize {
        self.original.width() * self.original.height()
    }

    /// The input with `result` instead of its masked part (`VaeImageProcessor.apply_overlay` of diffusers,
    /// `apply_overlay` of AUTOMATIC1111's `modules/processing.py`).
    ///
    /// # Errors
    /// [`crate::Error::Media`] where the result has another size than the images of its job.
    pub fn apply(&self, result: Rgb8Image) -> Result<Rgb8Image> {
        Ok(self.in_place(result)?.with_overlay(&self.original, &self.mask)?)
    }

    /// The input with `result` pasted by `seen` instead of by the mask: 255 shows the result, 0 the input. `seen` has the size
    /// of the latents (`apply_adaptive_masks` of AUTOMATIC1111's `extensions-builtin/soft-inpainting`: Lanczos to the size of
    /// the result, then Pillow's blur of radius 4).
    ///
    /// # Errors
    /// See [`Self::apply`].
    pub fn apply_seen(&self, result: Rgb8Image, seen: &Gray8Image) -> Result<Rgb8Image> {
        let mask = self.mask_of(seen, result.size())?;
        Ok(self.in_place(result)?.with_overlay(&self.original, &mask)?)
    }

    /// The mask of the whole input for a result of `size`.
    pub(super) fn mask_of(&self, seen: &Gray8Image, (width, height): (usize, usize)) -> Result<Gray8Image> {
        const RADIUS: f32 = 4.0;
        let mask = seen.resize_to(ResizeMode::Fill, width, height, Filter::Lanczos3)?;
        self.in_place(mask.pillow_gaussian_blur(RADIUS, RADIUS)?)
    }

    /// An image of the size of the result in its place of the input, on black.
    fn in_place<const C: usize>(&self, image: Image8<C>) -> Result<Image8<C>> {
        let Some(region) = self.region else { return Ok(image) };
        let fitted = image.resize_to(ResizeMode::Crop, region.width(), region.height(), Filter::Lanczos3)?;
        let (width, height) = self.original.size();
        let mut whole = Image8::filled(width, height, [0; C])?;
        whole.paste(&fitted, region.left as i64, region.top as i64);
        Ok(whole)
    }
}
