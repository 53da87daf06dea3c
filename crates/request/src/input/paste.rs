//! The result of inpainting in its place in the input.

use kiln_media::{Filter, Gray8Image, Region, ResizeMode, Rgb8Image};

use crate::error::Result;

/// What is pasted around the masked part of a result.
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
    /// The input with `result` in the place of its masked part (`VaeImageProcessor.apply_overlay` of diffusers,
    /// `apply_overlay` of AUTOMATIC1111's `modules/processing.py`).
    pub fn apply(&self, result: Rgb8Image) -> Result<Rgb8Image> {
        let result = match self.region {
            None => result,
            Some(region) => {
                let fitted = result.resize_to(ResizeMode::Crop, region.width(), region.height(), Filter::Lanczos3)?;
                let (width, height) = self.original.size();
                let mut whole = Rgb8Image::filled(width, height, [0; 3])?;
                whole.paste(&fitted, region.left as i64, region.top as i64);
                whole
            }
        };
        Ok(result.with_overlay(&self.original, &self.mask)?)
    }
}
