//! Images as PNG files with texts in them, in memory or written as they are compressed.

use std::io::Write;

pub use png::EncodingError;

use crate::Image8;
use crate::png_deflate::deflate;
use crate::png_level::PngLevel;
use crate::png_text::is_latin1;

/// Bytes of a chunk of compressed pixels.
const CHUNK: usize = 256 << 10;
/// Bytes of a pixel.
const RGB: usize = 3;
/// The most characters of a text's key.
const LONGEST_KEY: usize = 79;

/// An RGB image of `(width, height)` pixels, row by row in 8 bits, as a PNG. Each text is a key and its value.
///
/// # Errors
/// If the number of bytes is not `width * height * 3`, a side is 0, or a key is empty or longer than 79 characters.
pub fn encode_png(size: (usize, usize), rgb: &[u8], texts: &[(&str, &str)]) -> Result<Vec<u8>, EncodingError> {
    encode_png_at(size, rgb, texts, PngLevel::default())
}

/// Encodes with another compression.
///
/// # Errors
/// See [`encode_png`].
pub fn encode_png_at(
    size: (usize, usize),
    rgb: &[u8],
    texts: &[(&str, &str)],
    level: PngLevel,
) -> Result<Vec<u8>, EncodingError> {
    let mut bytes = Vec::new();
    let mut writer = header(&mut bytes, size, png::ColorType::Rgb, texts, level)?;
    let row = size.0.saturating_mul(RGB);
    if level == PngLevel::Fast && row.checked_mul(size.1) == Some(rgb.len()) {
        // A chunk has at most 2^31 - 1 bytes.
        for part in deflate::<RGB>(rgb, row)?.chunks(1 << 30) {
            writer.write_chunk(png::chunk::IDAT, part)?;
        }
    } else {
        writer.write_image_data(rgb)?;
    }
    writer.finish()?;
    Ok(bytes)
}

/// Writes an image of 1 (gray), 3 (color) or 4 channels (with alpha) as a PNG with texts. Compressed pixels are written as
/// they come, so that no second copy of the image is in memory.
///
/// # Errors
/// Errors of the writer; where the image has 2 or more than 4 channels, or a key is not [`is_png_key`].
pub fn write_png<const C: usize>(
    to: impl Write,
    image: &Image8<C>,
    texts: &[(&str, &str)],
) -> Result<(), EncodingError> {
    let color = match C {
        1 => png::ColorType::Grayscale,
        3 => png::ColorType::Rgb,
        4 => png::ColorType::Rgba,
        _ => return Err(std::io::Error::other(format!("a PNG has 1, 3 or 4 channels, not {C}")).into()),
    };
    let mut writer = header(to, image.size(), color, texts, PngLevel::default())?;
    let mut pixels = writer.stream_writer_with_size(CHUNK)?;
    pixels.write_all(image.data())?;
    pixels.finish()?;
    writer.finish()
}

/// Whether a text of a PNG can have this key: 1 to 79 characters of Latin-1.
#[must_use]
pub fn is_png_key(key: &str) -> bool {
    (1..=LONGEST_KEY).contains(&key.chars().count()) && key.chars().all(|c| u32::from(c) < 256)
}

/// The begin of a file: its header and its texts.
fn header<W: Write>(
    to: W,
    (width, height): (usize, usize),
    color: png::ColorType,
    texts: &[(&str, &str)],
    level: PngLevel,
) -> Result<png::Writer<W>, EncodingError> {
    let side = |side: usize| u32::try_from(side).map_err(|_| std::io::Error::other(format!("a side of {side} pixels")));
    let mut encoder = png::Encoder::new(to, side(width)?, side(height)?);
    encoder.set_color(color);
    encoder.set_depth(png::BitDepth::Eight);
    // The encoder's own default takes 23 to 50 times as long as Kiln's, for files of the same size within a tenth.
    encoder.set_compression(level.compression());
    for &(key, text) in texts {
        // tEXt contains only Latin-1. For other texts AUTOMATIC1111 writes iTXt with the same key.
        if is_latin1(text) {
            encoder.add_text_chunk(key.into(), text.into())?;
        } else {
            encoder.add_itxt_chunk(key.into(), text.into())?;
        }
    }
    encoder.write_header()
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::{DecodeOptions, Gray8Image, ImageTexts, Rgb8Image, Rgba8Image, decode};

    #[test]
    fn images_are_written_with_alpha_and_texts() {
        let texts = [("parameters", "plain"), ("extras", "ぼ")];
        let image = Rgba8Image::new(2, 1, vec![1, 2, 3, 4, 5, 6, 7, 8]).unwrap();
        let mut bytes = Vec::new();
        write_png(&mut bytes, &image, &texts).unwrap();
        assert_eq!(decode(&bytes, "alpha", &DecodeOptions::default()).unwrap().to_rgba(), image);
        let found = ImageTexts::read_from(&mut Cursor::new(&bytes), |_| true).unwrap().unwrap().texts;
        let found: Vec<(&str, &str)> = found.iter().map(|text| (&*text.key, &*text.text)).collect();
        assert_eq!(found, texts);

        // More compressed bytes than a chunk has.
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let noise = (0..600 * 500 * 3).map(|_| next()).collect();
        let image = Rgb8Image::new(600, 500, noise).unwrap();
        let mut bytes = Vec::new();
        write_png(&mut bytes, &image, &[]).unwrap();
        assert!(bytes.len() > CHUNK);
        assert_eq!(decode(&bytes, "noise", &DecodeOptions::default()).unwrap().rgb(), &image);

        let gray = Gray8Image::new(1, 2, vec![7, 9]).unwrap();
        let mut bytes = Vec::new();
        write_png(&mut bytes, &gray, &[]).unwrap();
        assert_eq!(decode(&bytes, "gray", &DecodeOptions::default()).unwrap().rgb(), &gray.to_rgb());
        assert!(write_png(&mut Vec::new(), &Image8::<2>::filled(1, 1, [0; 2]).unwrap(), &[]).is_err());
    }

    #[test]
    fn rows_of_all_kinds_come_back() {
        let mut state = 1u32;
        for (width, height) in [(1, 1), (2, 3), (33, 17), (160, 90)] {
            for noise in [1, 9, 256] {
                let mut next = |i: usize| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (i / 7 + i / (3 * width) * 5) as u8 ^ ((state >> 24) % noise) as u8
                };
                let rgb: Vec<u8> = (0..3 * width * height).map(&mut next).collect();
                let bytes = encode_png((width, height), &rgb, &[("key", "text")]).unwrap();
                let found = decode(&bytes, "rows", &DecodeOptions::default()).unwrap();
                assert_eq!(found.rgb(), &Rgb8Image::new(width, height, rgb).unwrap());
            }
        }
        assert!(encode_png((2, 2), &[0; 11], &[]).is_err() && encode_png((0, 2), &[], &[]).is_err());
    }

    #[test]
    fn keys_are_short_and_latin1() {
        let long = "k".repeat(79);
        for (key, is_one) in [("parameters", true), (&long, true), ("é", true), ("", false), ("ぼ", false)] {
            assert_eq!(is_png_key(key), is_one, "{key}");
            let image = Rgb8Image::filled(1, 1, [0; 3]).unwrap();
            assert_eq!(write_png(&mut Vec::new(), &image, &[(key, "text")]).is_ok(), is_one, "{key}");
        }
        assert!(!is_png_key(&(long + "k")));
    }
}
