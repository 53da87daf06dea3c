//! A canvas of pixels to draw text and small images on.

use std::convert::Infallible;
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use embedded_graphics::Drawable;
use embedded_graphics::Pixel;
use embedded_graphics::draw_target::DrawTarget;
use embedded_graphics::geometry::{OriginDimensions, Point, Size};
use embedded_graphics::mono_font::MonoTextStyle;
use embedded_graphics::mono_font::iso_8859_1::FONT_7X13;
use embedded_graphics::pixelcolor::{Rgb888, RgbColor};
use embedded_graphics::text::{Baseline, Text};
use kiln_files::{Result, read_error};

use crate::Rgb8Image;
use crate::png_encode::{EncodingError, encode_png};

/// Width of a character. The font has Latin-1; other characters become question marks.
pub const LETTER: usize = 7;
/// Height of a line of text.
pub const LINE: usize = 15;

/// Pixels, initially white.
pub struct Canvas {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    rgb: Vec<u8>,
}

impl Canvas {
    /// A white canvas.
    pub fn new(width: usize, height: usize) -> Self {
        Self { width, height, rgb: vec![255; width * height * 3] }
    }

    /// Writes a line of text whose upper left corner is at `(x, y)`.
    pub fn text(&mut self, text: &str, x: usize, y: usize) {
        let style = MonoTextStyle::new(&FONT_7X13, Rgb888::BLACK);
        let at = Point::new(x as i32, y as i32);
        match Text::with_baseline(text, at, style, Baseline::Top).draw(self) {
            Ok(_) => {}
            Err(never) => match never {},
        }
    }

    /// Draws an image with its upper left corner at `(x, y)`. Pixels outside of the canvas are dropped.
    pub fn draw(&mut self, image: &Thumbnail, x: usize, y: usize) {
        let columns = image.width.min(self.width.saturating_sub(x));
        for row in 0..image.height.min(self.height.saturating_sub(y)) {
            let (from, to) = (row * image.width * 3, ((y + row) * self.width + x) * 3);
            self.rgb[to..to + columns * 3].copy_from_slice(&image.rgb[from..from + columns * 3]);
        }
    }

    /// Encodes the canvas as a PNG file in memory.
    pub fn png(&self) -> std::result::Result<Vec<u8>, EncodingError> {
        encode_png((self.width, self.height), &self.rgb, &[])
    }
}

impl OriginDimensions for Canvas {
    fn size(&self) -> Size {
        Size::new(self.width as u32, self.height as u32)
    }
}

impl DrawTarget for Canvas {
    type Color = Rgb888;
    type Error = Infallible;

    fn draw_iter<I: IntoIterator<Item = Pixel<Rgb888>>>(&mut self, pixels: I) -> std::result::Result<(), Infallible> {
        for Pixel(at, color) in pixels {
            let (Ok(x), Ok(y)) = (usize::try_from(at.x), usize::try_from(at.y)) else { continue };
            if x < self.width && y < self.height {
                let start = (y * self.width + x) * 3;
                self.rgb[start..start + 3].copy_from_slice(&[color.r(), color.g(), color.b()]);
            }
        }
        Ok(())
    }
}

/// A thumbnail.
pub struct Thumbnail {
    /// Width in pixels.
    pub width: usize,
    /// Height in pixels.
    pub height: usize,
    rgb: Vec<u8>,
}

/// Width and height of a PNG file.
pub fn size_of(path: &Path) -> Result<(usize, usize)> {
    let file = File::open(path).map_err(read_error(path))?;
    let reader = png::Decoder::new(BufReader::new(file)).read_info();
    let reader = reader.map_err(|error| read_error(path)(std::io::Error::other(error)))?;
    let (width, height) = reader.info().size();
    Ok((width as usize, height as usize))
}

impl Thumbnail {
    /// Reads a PNG file that Kiln wrote and scales it to at most `side` pixels in width and height.
    pub fn read(path: &Path, side: usize) -> Result<Self> {
        let bad = |error: png::DecodingError| read_error(path)(std::io::Error::other(error));
        let file = File::open(path).map_err(read_error(path))?;
        let mut reader = png::Decoder::new(BufReader::new(file)).read_info().map_err(bad)?;
        let size = reader.output_buffer_size().unwrap_or_default();
        let mut rgb = vec![0; size];
        let info = reader.next_frame(&mut rgb).map_err(bad)?;
        if (info.color_type, info.bit_depth) != (png::ColorType::Rgb, png::BitDepth::Eight) {
            let error = std::io::Error::other("is not an image with three 8-bit channels");
            return Err(read_error(path)(error));
        }
        let whole = Self { width: info.width as usize, height: info.height as usize, rgb };
        Ok(whole.within(side))
    }

    /// Scales an image in memory to at most `side` pixels in width and height.
    pub fn of(image: &Rgb8Image, side: usize) -> Self {
        Self { width: image.width(), height: image.height(), rgb: image.data().to_vec() }.within(side)
    }

    /// At most `side` pixels wide and high; each pixel is the mean of its source pixels.
    fn within(self, side: usize) -> Self {
        let longest = self.width.max(self.height);
        if longest <= side {
            return self;
        }
        let scaled = |length: usize| (length * side / longest).max(1);
        let (width, height) = (scaled(self.width), scaled(self.height));
        let mut rgb = Vec::with_capacity(width * height * 3);
        for y in 0..height {
            let rows = y * self.height / height..((y + 1) * self.height / height);
            for x in 0..width {
                let columns = x * self.width / width..((x + 1) * self.width / width);
                let count = (rows.len() * columns.len()).max(1);
                for channel in 0..3 {
                    let value = |(row, column)| usize::from(self.rgb[(row * self.width + column) * 3 + channel]);
                    let all = rows.clone().flat_map(|row| columns.clone().map(move |column| (row, column)));
                    rgb.push(((all.map(value).sum::<usize>() + count / 2) / count) as u8);
                }
            }
        }
        Self { width, height, rgb }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thumbnails_have_the_mean_of_their_pixels() {
        let rgb = [0, 10, 20, 100, 30, 20, 200, 0, 0, 0, 0, 3].to_vec();
        let small = Thumbnail { width: 2, height: 2, rgb }.within(1);
        assert_eq!((small.width, small.height, small.rgb), (1, 1, vec![75, 10, 11]));
        let wide = Thumbnail { width: 9, height: 3, rgb: vec![7; 81] }.within(4);
        assert_eq!((wide.width, wide.height, wide.rgb), (4, 1, vec![7; 12]));
    }

    #[test]
    fn pixels_outside_are_dropped() {
        let mut canvas = Canvas::new(10, 10);
        canvas.text("WW", 5, 5);
        canvas.draw(&Thumbnail { width: 4, height: 4, rgb: vec![9; 48] }, 8, 8);
        assert_eq!(canvas.rgb[(9 * 10 + 9) * 3..], [9, 9, 9]);
        assert!(canvas.rgb[..5 * 10 * 3].iter().all(|value| *value == 255));
        assert!(canvas.rgb.contains(&0) && canvas.png().is_ok());
    }
}
