//! Decoding with the crate `image`, within limits.

use std::io::Cursor;

use image::metadata::Orientation;
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};

use crate::{DecodedImage, Error, Gray8Image, Image8, Result, Rgb8Image, jpeg};

/// The supported formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileFormat {
    /// PNG; of an animation the default image.
    Png,
    /// JPEG: gray, color and CMYK.
    Jpeg,
    /// WebP; of an animation the first frame.
    WebP,
    /// Windows bitmap.
    Bmp,
    /// TIFF; the first page.
    Tiff,
    /// GIF; the first frame.
    Gif,
}

impl FileFormat {
    /// The name for messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Png => "PNG",
            Self::Jpeg => "JPEG",
            Self::WebP => "WebP",
            Self::Bmp => "BMP",
            Self::Tiff => "TIFF",
            Self::Gif => "GIF",
        }
    }

    /// Detects the format of `data` from its first bytes. The file name is not used.
    ///
    /// # Errors
    /// The content of `data` as far as its first bytes show it.
    fn of(data: &[u8]) -> Result<Self, String> {
        match image::guess_format(data) {
            Ok(ImageFormat::Png) => Ok(Self::Png),
            Ok(ImageFormat::Jpeg) => Ok(Self::Jpeg),
            Ok(ImageFormat::WebP) => Ok(Self::WebP),
            Ok(ImageFormat::Bmp) => Ok(Self::Bmp),
            Ok(ImageFormat::Tiff) => Ok(Self::Tiff),
            Ok(ImageFormat::Gif) => Ok(Self::Gif),
            Ok(other) => Err(format!("is an image of format {other:?}")),
            Err(_) if data.is_empty() => Err("has no bytes".into()),
            Err(_) if data.get(4..8) == Some(b"ftyp") => Err("is an HEIF image or a video".into()),
            Err(_) => {
                let first: Vec<String> = data.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
                Err(format!("begins with the bytes {}, as no known image does", first.join(" ")))
            }
        }
    }

    fn of_crate(self) -> ImageFormat {
        match self {
            Self::Png => ImageFormat::Png,
            Self::Jpeg => ImageFormat::Jpeg,
            Self::WebP => ImageFormat::WebP,
            Self::Bmp => ImageFormat::Bmp,
            Self::Tiff => ImageFormat::Tiff,
            Self::Gif => ImageFormat::Gif,
        }
    }
}

/// Limits of [`decode`] and [`crate::open`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeOptions {
    /// The maximum number of pixels. The values in the header are checked before any allocation.
    pub max_pixels: u64,
    /// The maximum memory of the decoder in bytes, without the file itself.
    pub max_memory: u64,
    /// The maximum size of a file or stream in bytes.
    pub max_file: u64,
}

impl Default for DecodeOptions {
    /// 64 megapixels, 1 GiB and 512 MiB. An image of 64 megapixels with 16 bits and alpha has 512 MB of pixels.
    fn default() -> Self {
        Self { max_pixels: 64_000_000, max_memory: 1 << 30, max_file: 512 << 20 }
    }
}

/// Decodes an image from the bytes of its file. `name` is used in messages: a path, or the source of the bytes.
///
/// - The content determines the format.
/// - The orientation of Exif, or of TIFF's own tag, is applied.
/// - Gray values are copied to three channels, palettes are looked up, and alpha is kept ([`DecodedImage::into_rgb`]).
/// - 16-bit samples are reduced to their high byte, as Pillow does with colors. (Pillow saturates 16-bit gray at 255,
///   which makes nearly all of such an image white; this is not copied.)
/// - Pixels equal those of Pillow 13 exactly, except for JPEG: there they differ by up to 4 levels, on average by 0.4
///   with subsampled chroma and by 0.04 without (`tests/files.rs`).
/// - Pixels that the first frame of a GIF leaves empty are black and transparent (Pillow: the palette's first color,
///   opaque).
/// - TIFF with a palette or with floating point is refused.
/// - Color profiles and gamma are ignored, as by Pillow.
///
/// # Errors
/// [`Error::Unsupported`], [`Error::TooLarge`] and [`Error::Damaged`], each with `name` and what was found.
pub fn decode(data: &[u8], name: &str, options: &DecodeOptions) -> Result<DecodedImage> {
    if data.len() as u64 > options.max_file {
        return Err(too_large(name, format!("has {} bytes", data.len()), format!("{} bytes", options.max_file)));
    }
    let unsupported = |found: String| Error::Unsupported { name: name.into(), found };
    let format = FileFormat::of(data).map_err(unsupported)?;
    let error = |error: ImageError| convert(error, name, format, options);

    let check_pixels = |width: u32, height: u32| {
        let limit = options.max_pixels.min(crate::MAX_PIXELS as u64);
        if u64::from(width) * u64::from(height) > limit {
            return Err(too_large(name, format!("has {width}x{height} pixels"), format!("{limit} pixels")));
        }
        Ok(())
    };
    // This decoder allocates its rows when it is created, and its error has no size.
    if let (FileFormat::Png, Some([b'I', b'H', b'D', b'R', w3, w2, w1, w0, h3, h2, h1, h0])) =
        (format, data.get(12..24))
    {
        check_pixels(u32::from_be_bytes([*w3, *w2, *w1, *w0]), u32::from_be_bytes([*h3, *h2, *h1, *h0]))?;
    }

    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(options.max_memory);
    let mut reader = ImageReader::with_format(Cursor::new(data), format.of_crate());
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(error)?;

    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        let problem = format!("its header states {width}x{height} pixels");
        return Err(Error::Damaged { name: name.into(), format: format.name(), problem });
    }
    check_pixels(width, height)?;
    if decoder.total_bytes() > options.max_memory {
        let found = format!("has {width}x{height} pixels, which are {} bytes", decoder.total_bytes());
        return Err(too_large(name, found, format!("{} bytes", options.max_memory)));
    }
    if format == FileFormat::Jpeg && !jpeg::reaches_its_end(data) {
        let problem = "it ends before the marker of its end".into();
        return Err(Error::Damaged { name: name.into(), format: format.name(), problem });
    }
    // Invalid Exif data does not affect the pixels.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(error)?;
    image.apply_orientation(orientation);
    let (rgb, alpha) = split(image).ok_or_else(|| unsupported("has samples of floating point".into()))??;
    Ok(DecodedImage::new(rgb, alpha, format))
}

/// The colors and the alpha of an image; `None` for an unsupported sample type.
fn split(image: DynamicImage) -> Option<Result<(Rgb8Image, Option<Gray8Image>)>> {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let high = |samples: Vec<u16>| samples.into_iter().map(|v| (v >> 8) as u8).collect();
    let (channels, bytes): (usize, Vec<u8>) = match image {
        DynamicImage::ImageLuma8(image) => (1, image.into_raw()),
        DynamicImage::ImageLumaA8(image) => (2, image.into_raw()),
        DynamicImage::ImageRgb8(image) => (3, image.into_raw()),
        DynamicImage::ImageRgba8(image) => (4, image.into_raw()),
        DynamicImage::ImageLuma16(image) => (1, high(image.into_raw())),
        DynamicImage::ImageLumaA16(image) => (2, high(image.into_raw())),
        DynamicImage::ImageRgb16(image) => (3, high(image.into_raw())),
        DynamicImage::ImageRgba16(image) => (4, high(image.into_raw())),
        _ => return None,
    };
    Some(match channels {
        1 => Gray8Image::new(width, height, bytes).map(|gray| (gray.to_rgb(), None)),
        2 => {
            Image8::<2>::new(width, height, bytes).map(|both| (both.map(|[v, _]| [v; 3]), Some(both.map(|[_, a]| [a]))))
        }
        3 => Rgb8Image::new(width, height, bytes).map(|rgb| (rgb, None)),
        _ => Image8::<4>::new(width, height, bytes).map(|both| (both.to_rgb(), Some(both.alpha()))),
    })
}

fn too_large(name: &str, found: String, limit: String) -> Error {
    Error::TooLarge { name: name.into(), found, limit }
}

fn convert(error: ImageError, name: &str, format: FileFormat, options: &DecodeOptions) -> Error {
    let plain = |text: String| text.trim_matches(|c: char| c.is_whitespace() || ".\"".contains(c)).to_owned();
    let problem =
        |error: &dyn std::error::Error| plain(error.source().map_or_else(|| error.to_string(), ToString::to_string));
    match error {
        ImageError::Limits(_) => {
            too_large(name, "needs more memory to be decoded".into(), format!("{} bytes", options.max_memory))
        }
        ImageError::Unsupported(error) => Error::Unsupported {
            name: name.into(),
            found: format!("is a {} image of an unsupported kind ({error})", format.name()),
        },
        ImageError::Decoding(error) => {
            Error::Damaged { name: name.into(), format: format.name(), problem: problem(&error) }
        }
        error => Error::Damaged { name: name.into(), format: format.name(), problem: plain(error.to_string()) },
    }
}
