//! Checks that a file is an image.

use std::fs::File;
use std::io::BufReader;

use crate::Result;

/// Fails unless `file` decodes as a PNG of `size` (`WIDTHxHEIGHT`) whose pixels are not all the same.
pub fn check(file: &str, size: &str) -> Result {
    let side = |text: &str| text.parse::<u32>().map_err(|_| format!("{size} is not a size; expected WIDTHxHEIGHT"));
    let (width, height) = size.split_once('x').ok_or_else(|| format!("{size} is not a size; expected WIDTHxHEIGHT"))?;
    let expected = (side(width)?, side(height)?);
    let failed = |error: &dyn std::fmt::Display| format!("{file}: {error}");

    let reader = BufReader::new(File::open(file).map_err(|error| failed(&error))?);
    let mut reader = png::Decoder::new(reader).read_info().map_err(|error| failed(&error))?;
    let found = (reader.info().width, reader.info().height);
    let mut pixels = vec![0; reader.output_buffer_size().ok_or("the image is too large")?];
    let frame = reader.next_frame(&mut pixels).map_err(|error| failed(&error))?;
    if found != expected {
        return Err(format!("{file} is {}x{}, expected {size}", found.0, found.1).into());
    }
    let pixel_bytes = frame.color_type.samples() * usize::from(frame.bit_depth as u8).div_ceil(8);
    let mut all = pixels[..frame.buffer_size()].chunks_exact(pixel_bytes);
    let first = all.next();
    if all.all(|pixel| Some(pixel) == first) {
        return Err(format!("{file}: every pixel is the same").into());
    }
    println!("{file}: an image of {size}");
    Ok(())
}
