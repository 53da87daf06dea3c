//! Encoding images without settings (contact sheets, previews), and JPEG and WebP with settings.

use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageEncoder, ImageError, ImageResult};

use crate::{Error, Image8, Result, Rgb8Image, exif};

/// A format to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StillFormat {
    /// PNG without text.
    Png,
    /// JPEG of a quality from 1 to 100, for gray and color images.
    Jpeg(u8),
    /// Lossless WebP, for color images with and without alpha and for gray ones.
    WebPLossless,
}

/// The bytes of an image file. The same image gives the same bytes.
///
/// # Errors
/// [`Error::Encode`] for a quality outside of 1 to 100, alpha in JPEG, a side above the format's limit (65535 for JPEG, 16383
/// for WebP), and images with two or more than four channels.
pub fn encode<const C: usize>(image: &Image8<C>, format: StillFormat) -> Result<Vec<u8>> {
    encode_with_exif(image, format, None)
}

/// The longest Exif data of a JPEG file: a segment of 65,535 bytes with its own length and a label.
const MAX_EXIF_OF_JPEG: usize = 65_535 - 2 - 6;

/// The bytes of a color image with settings in its Exif data, where AUTOMATIC1111 has them. Settings that are longer than a
/// JPEG can hold are left out of it.
///
/// # Errors
/// See [`encode`].
pub fn encode_with_settings(image: &Rgb8Image, format: StillFormat, settings: &str) -> Result<Vec<u8>> {
    let failed = |error: ::exif::Error| Error::Encode { format: "Exif", problem: error.to_string() };
    let data = exif::user_comment(settings).map_err(failed)?;
    let fits = !matches!(format, StillFormat::Jpeg(_)) || data.len() <= MAX_EXIF_OF_JPEG;
    encode_with_exif(image, format, fits.then_some(data))
}

fn encode_with_exif<const C: usize>(image: &Image8<C>, format: StillFormat, exif: Option<Vec<u8>>) -> Result<Vec<u8>> {
    let name = match format {
        StillFormat::Png => "PNG",
        StillFormat::Jpeg(_) => "JPEG",
        StillFormat::WebPLossless => "WebP",
    };
    let failed = |problem: String| Error::Encode { format: name, problem };
    let color = match C {
        1 => ExtendedColorType::L8,
        3 => ExtendedColorType::Rgb8,
        4 => ExtendedColorType::Rgba8,
        _ => return Err(failed(format!("it has {C} channels, expected 1, 3 or 4"))),
    };
    let side = |side: usize| u32::try_from(side).map_err(|_| failed(format!("a side of {side} is too long")));
    let (width, height) = (side(image.width())?, side(image.height())?);
    let mut bytes = Cursor::new(Vec::new());
    let data = image.data();
    let written = match format {
        StillFormat::Png => write(PngEncoder::new(&mut bytes), exif, (data, width, height, color)),
        StillFormat::WebPLossless => write(WebPEncoder::new_lossless(&mut bytes), exif, (data, width, height, color)),
        StillFormat::Jpeg(quality @ 1..=100) => {
            write(JpegEncoder::new_with_quality(&mut bytes, quality), exif, (data, width, height, color))
        }
        StillFormat::Jpeg(quality) => return Err(failed(format!("the quality is {quality}; it is from 1 to 100"))),
    };
    written.map_err(|error| failed(error.to_string()))?;
    Ok(bytes.into_inner())
}

/// Writes pixels, their width, height and color, with Exif data if there is any.
fn write(
    mut encoder: impl ImageEncoder,
    exif: Option<Vec<u8>>,
    (data, width, height, color): (&[u8], u32, u32, ExtendedColorType),
) -> ImageResult<()> {
    if let Some(exif) = exif {
        encoder.set_exif_metadata(exif).map_err(ImageError::Unsupported)?;
    }
    encoder.write_image(data, width, height, color)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    use crate::{DecodeOptions, ImageTexts, Rgb8Image, Rgba8Image, decode};

    #[test]
    fn lossless_formats_return_the_pixels() {
        let data = (0..7 * 5 * 4).map(|i| (i * 37 % 256) as u8).collect();
        let image = Rgba8Image::new(7, 5, data).unwrap();
        for format in [StillFormat::Png, StillFormat::WebPLossless] {
            let read = |bytes: Vec<u8>| decode(&bytes, "image", &DecodeOptions::default()).unwrap();
            assert_eq!(read(encode(&image, format).unwrap()).to_rgba(), image, "{format:?}");
            assert_eq!(read(encode(&image.to_rgb(), format).unwrap()).rgb(), &image.to_rgb(), "{format:?}");
            assert_eq!(read(encode(&image.alpha(), format).unwrap()).rgb().to_gray(), image.alpha(), "{format:?}");
        }
    }

    #[test]
    fn jpeg_keeps_the_colors_about() {
        let image = Rgb8Image::filled(16, 16, [200, 100, 50]).unwrap();
        let bytes = encode(&image, StillFormat::Jpeg(90)).unwrap();
        let read = decode(&bytes, "image", &DecodeOptions::default()).unwrap();
        assert!(read.rgb().data().iter().zip(image.data()).all(|(a, b)| a.abs_diff(*b) <= 4));
        for quality in [0, 101] {
            assert!(matches!(encode(&image, StillFormat::Jpeg(quality)), Err(Error::Encode { .. })));
        }
        assert!(encode(&Rgba8Image::filled(1, 1, [0; 4]).unwrap(), StillFormat::Jpeg(90)).is_err());
    }
    #[test]
    fn settings_are_read_again() {
        let image = Rgb8Image::filled(16, 16, [200, 100, 50]).unwrap();
        let settings = "ein Apfel, größer 🍎\nSteps: 20, Seed: 1";
        for format in [StillFormat::Jpeg(80), StillFormat::WebPLossless] {
            let bytes = encode_with_settings(&image, format, settings).unwrap();
            let texts =
                ImageTexts::read_from(&mut Cursor::new(&bytes), |texts| !texts.is_empty()).unwrap().unwrap().texts;
            assert_eq!((&*texts[0].key, &*texts[0].text), ("UserComment", settings), "{format:?}");
            assert_eq!(decode(&bytes, "image", &DecodeOptions::default()).unwrap().rgb().size(), (16, 16));
        }
        let long = "x".repeat(MAX_EXIF_OF_JPEG / 2);
        let bytes = encode_with_settings(&image, StillFormat::Jpeg(80), &long).unwrap();
        assert!(bytes.len() < 2000 && decode(&bytes, "image", &DecodeOptions::default()).is_ok());
    }
}
