//! Encoding of images with text chunks as PNG files in memory.

pub use png::EncodingError;

use crate::png_text::is_latin1;

/// Encodes an RGB image of `(width, height)` pixels, 8 bits a sample, row by row, as a PNG. Each text is a key and its
/// value.
///
/// # Errors
/// If the number of bytes is not `width * height * 3`, a side is 0, or a key is empty or longer than 79 characters.
pub fn encode_png(
    (width, height): (usize, usize),
    rgb: &[u8],
    texts: &[(&str, &str)],
) -> Result<Vec<u8>, EncodingError> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    for &(key, text) in texts {
        // tEXt contains only Latin-1. For other texts AUTOMATIC1111 writes iTXt with the same key.
        if is_latin1(text) {
            encoder.add_text_chunk(key.into(), text.into())?;
        } else {
            encoder.add_itxt_chunk(key.into(), text.into())?;
        }
    }
    let mut writer = encoder.write_header()?;
    writer.write_image_data(rgb)?;
    writer.finish()?;
    Ok(bytes)
}
