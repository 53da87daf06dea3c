//! The files that images become.

use kiln_engine::GeneratedImage;
use kiln_media::{EncodingError, Rgb8Image, StillFormat, encode_with_settings};

/// The format of an image file. Each has the settings in it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ImageFormat {
    /// PNG, with the settings of AUTOMATIC1111 and of Kiln as texts.
    #[default]
    Png,
    /// JPEG of a quality from 1 to 100, with AUTOMATIC1111's settings in the Exif data.
    Jpeg(u8),
    /// Lossless WebP, with the same.
    WebP,
}

impl ImageFormat {
    /// The format with this name; `quality` is that of JPEG.
    pub(crate) fn find(name: &str, quality: u8) -> Option<Self> {
        match name.to_ascii_lowercase().as_str() {
            "png" => Some(Self::Png),
            "jpg" | "jpeg" => Some(Self::Jpeg(quality.clamp(1, 100))),
            "webp" => Some(Self::WebP),
            _ => None,
        }
    }

    /// The ending of files.
    pub(crate) fn ending(self) -> &'static str {
        match self {
            Self::Png => "png",
            Self::Jpeg(_) => "jpg",
            Self::WebP => "webp",
        }
    }

    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Self::Png => "image/png",
            Self::Jpeg(_) => "image/jpeg",
            Self::WebP => "image/webp",
        }
    }

    /// The file of an image with its settings.
    pub(crate) fn encode(self, image: &GeneratedImage) -> Result<Vec<u8>, String> {
        let format = match self {
            Self::Png => return image.png().map_err(|error: EncodingError| error.to_string()),
            Self::Jpeg(quality) => StillFormat::Jpeg(quality),
            Self::WebP => StillFormat::WebPLossless,
        };
        let pixels = Rgb8Image::new(image.width, image.height, image.rgb.clone()).map_err(|error| error.to_string())?;
        encode_with_settings(&pixels, format, &image.parameters).map_err(|error| error.to_string())
    }
}
