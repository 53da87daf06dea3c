//! Images as PNG files in memory, with texts in them.

pub use png::EncodingError;

use crate::png_text::is_latin1;

/// An RGB image of `(width, height)` pixels, row by row in 8 bits, as a PNG. Each text is a key and its value.
///
/// # Errors
/// Where the number of bytes is not `width * height * 3`, a side is 0, or a key is empty or longer than 79 characters.
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
        // tEXt holds Latin-1 alone. For other texts AUTOMATIC1111 writes iTXt under the same key.
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
