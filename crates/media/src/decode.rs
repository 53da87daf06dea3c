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
    /// The maximum width and height in pixels, checked at the same time: resizing a strip costs as much for a row as for
    /// an image.
    pub max_side: u64,
    /// The maximum memory of the decoder in bytes, without the file itself. A small image gets less ([`DECODER_BASE`]).
    pub max_memory: u64,
    /// The maximum size of a file or stream in bytes.
    pub max_file: u64,
}

impl Default for DecodeOptions {
    /// 64 megapixels, 65,536 pixels a side, 1 GiB and 512 MiB. An image of 64 megapixels with 16 bits and alpha has
    /// 512 MB of pixels.
    fn default() -> Self {
        Self { max_pixels: 64_000_000, max_side: 1 << 16, max_memory: 1 << 30, max_file: 512 << 20 }
    }
}

/// The bytes that a decoder may use besides [`DECODER_PIXEL`] for each pixel: color profiles and other metadata, which a
/// file of a few KiB can inflate to gigabytes.
pub const DECODER_BASE: u64 = 16 << 20;
/// The bytes that a decoder may use for a pixel: 8 for four samples of 16 bits, and its buffers.
pub const DECODER_PIXEL: u64 = 24;

/// The header of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageHeader {
    /// The format.
    pub format: FileFormat,
    /// Width in pixels, after the orientation of Exif is applied.
    pub width: usize,
    /// Height in pixels, after the orientation of Exif is applied.
    pub height: usize,
}

impl ImageHeader {
    /// The number of pixels.
    #[must_use]
    pub fn pixels(&self) -> usize {
        self.width.saturating_mul(self.height)
    }
}

/// Reads the header of an image file: its format and its size, within the limits of [`decode`]. No pixel is decoded.
///
/// # Errors
/// See [`decode`], except for damage after the header.
pub fn header(data: &[u8], name: &str, options: &DecodeOptions) -> Result<ImageHeader> {
    let (format, mut decoder) = decoder(data, name, options)?;
    let (width, height) = decoder.dimensions();
    let (mut width, mut height) = (width as usize, height as usize);
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    if matches!(decoder.orientation(), Ok(Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH)) {
        (width, height) = (height, width);
    }
    Ok(ImageHeader { format, width, height })
}

/// Decodes an image from the bytes of its file. `name` is used in messages: a path, or the source of the bytes.
///
/// - The content determines the format.
/// - The orientation of Exif, or of TIFF's own tag, is applied.
/// - Gray values are copied to three channels, palettes are looked up, and alpha is kept ([`DecodedImage::into_rgb`]).
/// - 16-bit samples are reduced to their high byte, as Pillow does with colors. (Pillow saturates 16-bit gray at 255,
///   which makes nearly all of such an image white; this is not copied.)
/// - Pixels equal those of Pillow 13 exactly, except for JPEG: there they differ by up to 4 levels, on average by 0.4
///   with subsampled chroma and by 0.04 without (`tests/media/files.rs`).
/// - Pixels that the first frame of a GIF leaves empty are black and transparent (Pillow: the palette's first color,
///   opaque).
/// - TIFF with a palette or with floating point is refused.
/// - Color profiles and gamma are ignored, as by Pillow.
///
/// # Errors
/// [`Error::Unsupported`], [`Error::TooLarge`] and [`Error::Damaged`], each with `name` and what was found.
pub fn decode(data: &[u8], name: &str, options: &DecodeOptions) -> Result<DecodedImage> {
    let (format, mut decoder) = decoder(data, name, options)?;
    let error = |error: ImageError| convert(error, name, format, options);
    let unsupported = |found: String| Error::Unsupported { name: name.into(), found };
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

/// The decoder of an image file, whose header is within the limits.
fn decoder<'a>(
    data: &'a [u8],
    name: &str,
    options: &DecodeOptions,
) -> Result<(FileFormat, impl ImageDecoder + use<'a>)> {
    if data.len() as u64 > options.max_file {
        return Err(too_large(name, format!("has {} bytes", data.len()), format!("{} bytes", options.max_file)));
    }
    let format = FileFormat::of(data).map_err(|found| Error::Unsupported { name: name.into(), found })?;
    let error = |error: ImageError| convert(error, name, format, options);
    // The decoder for PNG allocates its rows and inflates a color profile when it is created.
    let memory = match (format, data.get(12..24)) {
        (FileFormat::Png, Some([b'I', b'H', b'D', b'R', w3, w2, w1, w0, h3, h2, h1, h0])) => {
            let (width, height) = (u32::from_be_bytes([*w3, *w2, *w1, *w0]), u32::from_be_bytes([*h3, *h2, *h1, *h0]));
            check_size(width, height, name, options)?;
            decoder_memory(width, height, options)
        }
        _ => options.max_memory,
    };
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(memory);
    let mut reader = ImageReader::with_format(Cursor::new(data), format.of_crate());
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(error)?;

    let (width, height) = decoder.dimensions();
    if width == 0 || height == 0 {
        let problem = format!("its header states {width}x{height} pixels");
        return Err(Error::Damaged { name: name.into(), format: format.name(), problem });
    }
    check_size(width, height, name, options)?;
    if decoder.total_bytes() > options.max_memory {
        let found = format!("has {width}x{height} pixels, which are {} bytes", decoder.total_bytes());
        return Err(too_large(name, found, format!("{} bytes", options.max_memory)));
    }
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(decoder_memory(width, height, options));
    decoder.set_limits(limits).map_err(error)?;
    Ok((format, decoder))
}

/// The bytes that the decoder of an image of this size may use.
fn decoder_memory(width: u32, height: u32, options: &DecodeOptions) -> u64 {
    let pixels = u64::from(width) * u64::from(height);
    options.max_memory.min(DECODER_BASE + DECODER_PIXEL * pixels.min(crate::MAX_PIXELS as u64))
}

/// Refuses a size in a header that is not within the limits.
fn check_size(width: u32, height: u32, name: &str, options: &DecodeOptions) -> Result<()> {
    let limit = options.max_pixels.min(crate::MAX_PIXELS as u64);
    let found = || format!("has {width}x{height} pixels");
    if u64::from(width) * u64::from(height) > limit {
        return Err(too_large(name, found(), format!("{limit} pixels")));
    }
    if u64::from(width.max(height)) > options.max_side {
        return Err(too_large(name, found(), format!("{} pixels a side", options.max_side)));
    }
    Ok(())
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
