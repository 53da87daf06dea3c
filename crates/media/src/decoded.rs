//! The contents of an image file: colors, and alpha if the file has it.

use crate::{FileFormat, Filter, Gray8Image, Result, Rgb8Image, Rgba8Image};

/// The treatment of alpha when an image with three channels is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlphaRule {
    /// The colors stay as they are, those of transparent pixels too: Pillow's `convert("RGB")`, and so diffusers.
    Drop,
    /// The colors on white: AUTOMATIC1111's `images.flatten` with its default background.
    FlattenOnWhite,
}

/// An image as its file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedImage {
    rgb: Rgb8Image,
    alpha: Option<Gray8Image>,
    format: FileFormat,
}

impl DecodedImage {
    /// `rgb` and `alpha` have the same size.
    pub(crate) fn new(rgb: Rgb8Image, alpha: Option<Gray8Image>, format: FileFormat) -> Self {
        Self { rgb, alpha, format }
    }

    /// Width in pixels, after orientation.
    #[must_use]
    pub fn width(&self) -> usize {
        self.rgb.width()
    }

    /// Height in pixels, after orientation.
    #[must_use]
    pub fn height(&self) -> usize {
        self.rgb.height()
    }

    /// The format of the file.
    #[must_use]
    pub fn format(&self) -> FileFormat {
        self.format
    }

    /// The colors, not multiplied by alpha.
    #[must_use]
    pub fn rgb(&self) -> &Rgb8Image {
        &self.rgb
    }

    /// Alpha: 255 is opaque. `None` if the file has none. A GIF file always has it.
    #[must_use]
    pub fn alpha(&self) -> Option<&Gray8Image> {
        self.alpha.as_ref()
    }

    /// Whether a pixel is not opaque.
    #[must_use]
    pub fn is_transparent(&self) -> bool {
        self.alpha.as_ref().is_some_and(|alpha| alpha.data().iter().any(|&v| v != 255))
    }

    /// The image without alpha.
    #[must_use]
    pub fn into_rgb(self, rule: AlphaRule) -> Rgb8Image {
        match (rule, &self.alpha) {
            (AlphaRule::FlattenOnWhite, Some(alpha)) => match self.rgb.with_alpha(alpha) {
                Ok(rgba) => rgba.flatten([255; 3]),
                Err(_) => self.rgb, // `new` has the same sizes
            },
            _ => self.rgb,
        }
    }

    /// The colors and alpha together, opaque if the file has no alpha.
    #[must_use]
    pub fn to_rgba(&self) -> Rgba8Image {
        let opaque = || self.rgb.map(|[r, g, b]| [r, g, b, 255]);
        self.alpha.as_ref().and_then(|alpha| self.rgb.with_alpha(alpha).ok()).unwrap_or_else(opaque)
    }

    /// The image as a mask: alpha if a pixel is not opaque, else the gray values (AUTOMATIC1111's `create_binary_mask` before
    /// it rounds; [`Gray8Image::threshold`] with 128 rounds).
    #[must_use]
    pub fn to_mask(&self) -> Gray8Image {
        match &self.alpha {
            Some(alpha) if self.is_transparent() => alpha.clone(),
            _ => self.rgb.to_gray(),
        }
    }

    /// The image with another size; alpha too, with the colors as [`Rgba8Image::resize_with_alpha`] has them.
    ///
    /// # Errors
    /// See [`crate::Image8::resize`].
    pub fn resize(&self, width: usize, height: usize, filter: Filter) -> Result<Self> {
        if self.alpha.is_none() {
            return Ok(Self::new(self.rgb.resize(width, height, filter)?, None, self.format));
        }
        let resized = self.to_rgba().resize_with_alpha(width, height, filter)?;
        Ok(Self::new(resized.to_rgb(), Some(resized.alpha()), self.format))
    }
}
