//! An image of bytes: rows from top to bottom, pixels from left to right, the channels of a pixel side by side.

use crate::{Error, Region, Result};

/// The most pixels of an image that this crate makes: 2^28, which is 1 GiB with four channels.
pub const MAX_PIXELS: usize = 1 << 28;

/// An image with `C` channels of 8 bits, `(h, w, C)`. Neither side is 0.
#[derive(Clone, PartialEq, Eq)]
pub struct Image8<const C: usize> {
    width: usize,
    height: usize,
    data: Vec<u8>,
}

/// One channel: a gray image or a mask.
pub type Gray8Image = Image8<1>;
/// Red, green, blue, as the file has them: no color profile is applied.
pub type Rgb8Image = Image8<3>;
/// Red, green, blue and alpha. The colors are not multiplied by alpha.
pub type Rgba8Image = Image8<4>;

impl<const C: usize> std::fmt::Debug for Image8<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Image8<{C}> of {}x{}", self.width, self.height)
    }
}

impl<const C: usize> Image8<C> {
    /// An image of `data`, which has `width * height * C` bytes.
    ///
    /// # Errors
    /// [`Error::Size`] for a side of 0, more than [`MAX_PIXELS`] pixels, and another number of bytes.
    pub fn new(width: usize, height: usize, data: Vec<u8>) -> Result<Self> {
        let bytes = Self::bytes(width, height)?;
        if data.len() != bytes {
            let found = data.len();
            return Err(Error::Size(format!(
                "an image of {width}x{height} has {bytes} bytes of pixels, found {found}"
            )));
        }
        Ok(Self { width, height, data })
    }

    /// An image of one color.
    ///
    /// # Errors
    /// [`Error::Size`] for a side of 0 and more than [`MAX_PIXELS`] pixels.
    pub fn filled(width: usize, height: usize, color: [u8; C]) -> Result<Self> {
        Self::bytes(width, height)?;
        Ok(Self { width, height, data: color.repeat(width * height) })
    }

    /// The number of bytes of such an image, if one can be made.
    fn bytes(width: usize, height: usize) -> Result<usize> {
        match width.checked_mul(height) {
            Some(pixels) if (1..=MAX_PIXELS).contains(&pixels) => Ok(pixels * C),
            Some(0) => {
                Err(Error::Size(format!("an image of {width}x{height} has no pixels; both sides are at least 1")))
            }
            _ => Err(Error::Size(format!("an image of {width}x{height} has more than {MAX_PIXELS} pixels"))),
        }
    }

    /// An image of the same size, each pixel from one pixel of this.
    pub(crate) fn map<const D: usize>(&self, pixel: impl Fn([u8; C]) -> [u8; D]) -> Image8<D> {
        let mut data = Vec::with_capacity(self.width * self.height * D);
        self.pixels().for_each(|p| data.extend_from_slice(&pixel(*p)));
        Image8 { width: self.width, height: self.height, data }
    }

    /// Width in pixels.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Height in pixels.
    #[must_use]
    pub fn height(&self) -> usize {
        self.height
    }

    /// Width and height.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.width, self.height)
    }

    /// The bytes, `(h, w, C)`.
    #[must_use]
    pub fn data(&self) -> &[u8] {
        &self.data
    }

    /// The bytes, to change them.
    pub fn data_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }

    /// The bytes, `(h, w, C)`.
    #[must_use]
    pub fn into_data(self) -> Vec<u8> {
        self.data
    }

    /// The pixels, row by row.
    pub fn pixels(&self) -> impl ExactSizeIterator<Item = &[u8; C]> {
        self.data.as_chunks::<C>().0.iter()
    }

    /// The pixels, row by row, to change them.
    pub fn pixels_mut(&mut self) -> impl ExactSizeIterator<Item = &mut [u8; C]> {
        self.data.as_chunks_mut::<C>().0.iter_mut()
    }

    /// The pixels of row `y` as bytes, none below the image.
    #[must_use]
    pub fn row(&self, y: usize) -> &[u8] {
        self.data.chunks_exact(self.width * C).nth(y).unwrap_or_default()
    }

    /// The part inside of `region`.
    ///
    /// # Errors
    /// [`Error::Size`] for a region that is empty or reaches beyond the image.
    pub fn crop(&self, region: Region) -> Result<Self> {
        let Region { left, top, right, bottom } = region;
        if left >= right || top >= bottom || right > self.width || bottom > self.height {
            let (width, height) = self.size();
            return Err(Error::Size(format!(
                "the region {region} does not lie inside of an image of {width}x{height}"
            )));
        }
        let rows = (top..bottom).flat_map(|y| &self.row(y)[left * C..right * C]);
        Ok(Self { width: right - left, height: bottom - top, data: rows.copied().collect() })
    }

    /// Writes `image` with its top left pixel at (`left`, `top`). What lies outside of this image is left out.
    pub fn paste(&mut self, image: &Self, left: i64, top: i64) {
        // Neither side exceeds MAX_PIXELS, and an offset beyond that is outside of the image.
        let bound = 2 * MAX_PIXELS as i64;
        let (left, top) = (left.clamp(-bound, bound), top.clamp(-bound, bound));
        let clip = |start: i64, len: usize, limit: usize| {
            let first = start.clamp(0, limit as i64) as usize;
            first..(start + len as i64).clamp(first as i64, limit as i64) as usize
        };
        let (xs, ys) = (clip(left, image.width, self.width), clip(top, image.height, self.height));
        if xs.is_empty() {
            return;
        }
        for y in ys {
            let from = (xs.start as i64 - left) as usize * C;
            let row = &image.row((y as i64 - top) as usize)[from..from + xs.len() * C];
            let to = (y * self.width + xs.start) * C;
            self.data[to..to + row.len()].copy_from_slice(row);
        }
    }

    /// Fails if the two images differ in size.
    pub(crate) fn check_same_size<const D: usize>(&self, other: &Image8<D>, what: &str) -> Result<()> {
        if self.size() == other.size() {
            return Ok(());
        }
        let ((w, h), (width, height)) = (other.size(), self.size());
        Err(Error::Size(format!("{what} has {w}x{h} pixels, expected {width}x{height} as the image has")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered(width: usize, height: usize) -> Gray8Image {
        Image8::new(width, height, (0..width * height).map(|i| i as u8).collect()).unwrap()
    }

    #[test]
    fn an_image_has_the_bytes_of_its_size() {
        assert!(Rgb8Image::new(2, 2, vec![0; 12]).is_ok());
        for (width, height, bytes) in [(2, 2, 11), (0, 2, 0), (2, 0, 0), (usize::MAX, 2, 0), (1 << 20, 1 << 20, 0)] {
            let error = Rgb8Image::new(width, height, vec![0; bytes]).unwrap_err().to_string();
            assert!(error.contains(&format!("{width}x{height}")), "{error}");
            assert!((width, height) == (2, 2) || Rgb8Image::filled(width, height, [0; 3]).is_err());
        }
    }

    #[test]
    fn a_part_is_cut_out() {
        let part = numbered(4, 3).crop(Region { left: 1, top: 1, right: 3, bottom: 3 }).unwrap();
        assert_eq!((part.size(), part.data()), ((2, 2), &[5, 6, 9, 10][..]));
        for (left, top, right, bottom) in [(0, 0, 5, 1), (0, 0, 1, 4), (2, 0, 2, 1), (0, 2, 1, 1)] {
            assert!(numbered(4, 3).crop(Region { left, top, right, bottom }).is_err());
        }
    }

    #[test]
    fn pasting_leaves_out_what_is_outside() {
        let mut image = Gray8Image::filled(3, 3, [99]).unwrap();
        image.paste(&numbered(2, 2), -1, -1);
        image.paste(&numbered(2, 2), 2, 1);
        assert_eq!(image.data(), [3, 99, 99, 99, 99, 0, 99, 99, 2]);
        for (left, top) in [(3, 0), (0, 3), (-2, 0), (0, -2), (i64::MAX, i64::MIN)] {
            let before = image.clone();
            image.paste(&numbered(2, 2), left, top);
            assert_eq!(image, before);
        }
    }
}
