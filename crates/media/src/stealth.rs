//! Settings in the lowest bits of pixels: "stealth" PNG info, which survives the removal of text chunks.
//!
//! Pixels are visited column by column. The lowest bit of each alpha value (or of red, green and blue, in this order)
//! is one bit of: 15 characters with the mode, the number of following bits as 32 bits, then the text in UTF-8, which
//! the modes that end in `comp` compress with gzip. The extension sd_webui_stealth_pnginfo and NovelAI write this
//! format.

use std::io::{BufRead, Read, Seek};

use flate2::read::GzDecoder;
use png::{BitDepth, ColorType, Decoder, Transformations};

use crate::text::ImageText;

/// The modes: name, whether bits are in the colors, and whether the text is compressed.
const MODES: [(&[u8; 15], bool, bool); 4] = [
    (b"stealth_pnginfo", false, false),
    (b"stealth_pngcomp", false, true),
    (b"stealth_rgbinfo", true, false),
    (b"stealth_rgbcomp", true, true),
];
/// Bits of the mode's name and of the length.
const HEAD: usize = 15 * 8 + 32;
/// The maximum size of a hidden text in bytes.
const MAX_BYTES: usize = 1 << 20;
/// The maximum size of a decompressed text in bytes.
const MAX_TEXT: u64 = 16 << 20;

/// The hidden text of a PNG; `None` if there is none or it cannot be decoded.
///
/// Rows are read one by one, and only the bits that a text may have are stored. An image without a text is skipped
/// after its first rows.
pub(crate) fn read(file: impl BufRead + Seek) -> Option<ImageText> {
    let mut decoder = Decoder::new(file);
    decoder.set_transformations(Transformations::IDENTITY);
    decoder.set_ignore_text_chunk(true);
    decoder.set_ignore_iccp_chunk(true);
    let mut reader = decoder.read_info().ok()?;
    let info = reader.info();
    let (width, height) = (info.width as usize, info.height as usize);
    let channels = match (info.color_type, info.bit_depth) {
        (ColorType::Rgba, BitDepth::Eight) => 4,
        (ColorType::Rgb, BitDepth::Eight) => 3,
        _ => return None,
    };
    if info.interlaced || info.is_animated() {
        return None;
    }
    let mut alpha = Bits::new(1, width, height);
    let mut colours = Bits::new(3, width, height);
    let (mut in_alpha, mut in_colours) = (channels == 4, true);
    for y in 0..height {
        let Ok(Some(row)) = reader.next_row() else { break };
        let pixels = row.data().chunks_exact(channels);
        if in_alpha {
            alpha.push_row(pixels.clone().filter_map(|pixel| pixel.get(3)).copied());
            in_alpha = alpha.may_begin(y, false);
        }
        if in_colours {
            colours.push_row(pixels.flat_map(|pixel| &pixel[..3]).copied());
            in_colours = colours.may_begin(y, true);
        }
        if !in_alpha && !in_colours {
            return None;
        }
    }
    let found = |bits: &Bits, in_them: bool, is_rgb: bool| in_them.then(|| bits.text(is_rgb)).flatten();
    let (place, text) = found(&alpha, in_alpha, false).or_else(|| found(&colours, in_colours, true))?;
    Some(ImageText { place: "hidden in pixels".into(), key: place, text })
}

/// The lowest bits of the first columns of an image.
struct Bits {
    /// Bits in a pixel.
    of_pixel: usize,
    height: usize,
    /// The maximum number of columns of a text.
    columns: usize,
    /// Row by row, eight bits in a byte; each row starts with a new byte.
    rows: Vec<u8>,
}

impl Bits {
    fn new(of_pixel: usize, width: usize, height: usize) -> Self {
        let reach = (HEAD + 8 * MAX_BYTES).div_ceil(of_pixel * height.max(1));
        Self { of_pixel, height, columns: reach.min(width), rows: Vec::new() }
    }

    fn bytes_of_row(&self) -> usize {
        (self.columns * self.of_pixel).div_ceil(8)
    }

    fn push_row(&mut self, values: impl Iterator<Item = u8>) {
        let mut row = vec![0; self.bytes_of_row()];
        for (i, value) in values.take(self.columns * self.of_pixel).enumerate() {
            row[i / 8] |= (value & 1) << (i % 8);
        }
        self.rows.append(&mut row);
    }

    /// Bit `i` of the text.
    fn get(&self, i: usize) -> Option<bool> {
        let (pixel, part) = (i / self.of_pixel, i % self.of_pixel);
        let (x, y) = (pixel / self.height, pixel % self.height);
        let bit = x * self.of_pixel + part;
        let byte = self.rows.get(y * self.bytes_of_row() + bit / 8).filter(|_| x < self.columns)?;
        Some(byte >> (bit % 8) & 1 == 1)
    }

    /// Byte `i` of the text, its highest bit first.
    fn byte(&self, i: usize) -> Option<u8> {
        (0..8).try_fold(0, |byte, bit| Some(byte << 1 | u8::from(self.get(8 * i + bit)?)))
    }

    /// Whether the first column down to row `y` may be the start of a mode's name.
    fn may_begin(&self, y: usize, is_rgb: bool) -> bool {
        let bits = ((y + 1) * self.of_pixel).min(15 * 8);
        MODES.iter().filter(|mode| mode.1 == is_rgb).any(|(name, ..)| {
            // Only the last row is new, but a name is short.
            (0..bits).all(|i| self.get(i) == Some(name[i / 8] >> (7 - i % 8) & 1 == 1))
        })
    }

    /// The mode's name and the text.
    fn text(&self, is_rgb: bool) -> Option<(String, String)> {
        let bytes = |range: std::ops::Range<usize>| range.map(|i| self.byte(i)).collect::<Option<Vec<u8>>>();
        let name = bytes(0..15)?;
        let (name, _, compressed) = MODES.iter().find(|mode| mode.0[..] == name && mode.1 == is_rgb)?;
        let length = u32::from_be_bytes(bytes(15..19)?.try_into().ok()?) as usize / 8;
        if length > MAX_BYTES {
            return None;
        }
        let data = bytes(19..19 + length)?;
        let text = if *compressed {
            let mut text = Vec::new();
            GzDecoder::new(&data[..]).take(MAX_TEXT + 1).read_to_end(&mut text).ok()?;
            (text.len() as u64 <= MAX_TEXT).then_some(text)?
        } else {
            data
        };
        Some((String::from_utf8_lossy(*name).into_owned(), String::from_utf8_lossy(&text).into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use super::*;

    /// A PNG with noise and the hidden `bits`.
    fn hide(bits: &[u8], of_pixel: usize, channels: usize, (width, height): (usize, usize)) -> Vec<u8> {
        let mut pixels: Vec<u8> = (0..width * height * channels).map(|i| ((i * 7919) >> 3) as u8).collect();
        for (i, bit) in (0..8 * bits.len()).map(|i| bits[i / 8] >> (7 - i % 8) & 1).enumerate() {
            let (pixel, part) = (i / of_pixel, i % of_pixel);
            let (x, y) = (pixel / height, pixel % height);
            let at = (y * width + x) * channels + if of_pixel == 1 { 3 } else { part };
            pixels[at] = pixels[at] & 0xfe | bit;
        }
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
        encoder.set_color(if channels == 4 { ColorType::Rgba } else { ColorType::Rgb });
        encoder.write_header().unwrap().write_image_data(&pixels).unwrap();
        bytes
    }

    fn payload(mode: &[u8], text: &[u8]) -> Vec<u8> {
        [mode, &(8 * text.len() as u32).to_be_bytes(), text].concat()
    }

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn text(png: &[u8]) -> Option<(String, String)> {
        read(Cursor::new(png)).map(|text| (text.key, text.text))
    }

    #[test]
    fn every_mode_is_read() {
        let said = "a circle, 円\nSteps: 20".to_string();
        for (mode, is_rgb, compressed) in MODES {
            let data = if compressed { gzip(said.as_bytes()) } else { said.clone().into_bytes() };
            let data = payload(mode, &data);
            for size in [(64, 64), (200, 7), (7, 200)] {
                for channels in if is_rgb { vec![3, 4] } else { vec![4] } {
                    let found = text(&hide(&data, if is_rgb { 3 } else { 1 }, channels, size));
                    assert_eq!(found, Some((String::from_utf8_lossy(mode).into_owned(), said.clone())), "{size:?}");
                }
            }
        }
    }

    #[test]
    fn false_lengths_and_truncated_bits_are_ignored() {
        let size = (32, 32);
        assert_eq!(text(&hide(b"", 1, 4, size)), None);
        assert_eq!(text(&hide(b"stealth_pngnews\0\0\0\x08a", 1, 4, size)), None);
        let lies = [b"stealth_pnginfo".as_slice(), &u32::MAX.to_be_bytes(), b"abc"].concat();
        assert_eq!(text(&hide(&lies, 1, 4, size)), None);
        let short = [b"stealth_pnginfo".as_slice(), &8000u32.to_be_bytes(), b"abc"].concat();
        assert_eq!(text(&hide(&short, 1, 4, size)), None);
        assert_eq!(text(&hide(&payload(b"stealth_pngcomp", b"no gzip"), 1, 4, size)), None);
        let bomb = gzip(&vec![b'x'; MAX_TEXT as usize + 1]);
        assert_eq!(text(&hide(&payload(b"stealth_pngcomp", &bomb), 1, 4, (512, 512))), None);
        let good = hide(&payload(b"stealth_pnginfo", b"abc"), 1, 4, size);
        for end in 0..good.len() {
            text(&good[..end]);
        }
        assert_eq!(text(b""), None);
    }
}
