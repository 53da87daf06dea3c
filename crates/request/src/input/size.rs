//! The sizes that follow from the header of an input image, before any pixel is decoded.

use kiln_media::{ImageHeader, size_in_multiples};

use super::read::ImageBytes;
use crate::error::Result;
use crate::limits::side;
use crate::options::Request;

/// Widths and heights in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InputSize {
    /// The image with the borders that `extend` adds.
    pub extended: (usize, usize),
    /// The results.
    pub results: (usize, usize),
}

impl Request {
    /// The sizes of a run with the input image; `None` without one. Only the header of the file is decoded. Sizes of results
    /// are multiples of `multiple`.
    ///
    /// # Errors
    /// Errors of the file, and [`crate::Error::Value`] for a side that results cannot have.
    pub fn input_size(&self, multiple: usize) -> Result<Option<InputSize>> {
        let Some(path) = &self.init else { return Ok(None) };
        Ok(Some(self.size_of(ImageBytes::read("init", path)?.header()?, multiple)?))
    }

    /// The sizes of a run with an input image that has this header.
    pub(super) fn size_of(&self, image: ImageHeader, multiple: usize) -> Result<InputSize> {
        let borders = self.extend.unwrap_or_default();
        let extended = (
            image.width.saturating_add(borders.left).saturating_add(borders.right),
            image.height.saturating_add(borders.top).saturating_add(borders.bottom),
        );
        let (width, height) = size_in_multiples(extended.0, extended.1, multiple);
        let (width, height) = (self.width.unwrap_or(width), self.height.unwrap_or(height));
        Ok(InputSize { extended, results: (side("width", width, multiple)?, side("height", height, multiple)?) })
    }
}
