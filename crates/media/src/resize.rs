//! Resizing to the bit as Pillow does.
//!
//! Pillow resizes in two passes of one direction each, with bytes between them (`libImaging/Resample.c`). A pass adds up bytes times
//! weights of 22 bits ([`Weights`]), whatever the number of channels. [`Filter::Nearest`] is a choice of pixels. A pass that does
//! not change its side is left out.

use crate::resize_weights::{BITS, HALF, Weights};
use crate::{Image8, Result, Rgba8Image};

/// A filter of Pillow. When an image gets smaller, all but [`Filter::Nearest`] widen with the factor (antialias).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Filter {
    /// The pixel that contains the middle of the new one.
    Nearest,
    /// The mean.
    Box,
    /// A triangle, 1 pixel to each side.
    Bilinear,
    /// A cubic with a = -0.5, 2 pixels to each side.
    Bicubic,
    /// A sinc in a window of a sinc, 3 pixels to each side: what diffusers and AUTOMATIC1111 resize images with.
    Lanczos3,
}

impl<const C: usize> Image8<C> {
    /// The image with another size. Channels are resized one by one; [`Rgba8Image::resize_with_alpha`] is for colors with
    /// alpha.
    ///
    /// # Errors
    /// [`crate::Error::Size`] for a side of 0 and more than [`crate::MAX_PIXELS`] pixels, also in the image between the passes.
    pub fn resize(&self, width: usize, height: usize, filter: Filter) -> Result<Self> {
        Self::filled(width, height, [0; C])?; // before anything is computed
        let (w, h) = (self.width() as i64, self.height() as i64);
        if filter == Filter::Nearest {
            return self.nearest(width, height);
        }
        // As Pillow 13: a pass along the other direction first if that leaves less to do.
        let vertical_first = h - height as i64 > 2 * (w - width as i64) && h > height as i64;
        if vertical_first {
            self.resize_columns(height, filter)?.resize_rows(width, filter)
        } else {
            self.resize_rows(width, filter)?.resize_columns(height, filter)
        }
    }

    /// The nearest pixels.
    fn nearest(&self, width: usize, height: usize) -> Result<Self> {
        let columns = nearest_indices(self.width(), width);
        let mut data = Vec::with_capacity(width * height * C);
        for y in nearest_indices(self.height(), height) {
            let row = self.row(y).as_chunks::<C>().0;
            columns.iter().for_each(|&x| data.extend_from_slice(&row[x]));
        }
        Self::new(width, height, data)
    }

    /// The image with rows of `width` pixels.
    fn resize_rows(&self, width: usize, filter: Filter) -> Result<Self> {
        let ranges = Weights::ranges(filter, self.width(), width).filter(|_| width != self.width());
        let Some(ranges) = ranges else { return Ok(self.clone()) };
        let mut out = Self::filled(width, self.height(), [0; C])?;
        for range in ranges {
            let Some(weights) = Weights::new(filter, self.width(), width, range.clone()) else { break };
            let rows = self.data().chunks_exact(self.width() * C).zip(out.data_mut().chunks_exact_mut(width * C));
            for (from, to) in rows {
                let (from, to) = (from.as_chunks::<C>().0, to.as_chunks_mut::<C>().0);
                for ((first, weights), to) in weights.iter().zip(&mut to[range.clone()]) {
                    let mut sums = [HALF; C];
                    for (pixel, weight) in from[first..].iter().zip(weights) {
                        for (sum, &value) in sums.iter_mut().zip(pixel) {
                            *sum = sum.wrapping_add(weight.wrapping_mul(i32::from(value)));
                        }
                    }
                    *to = sums.map(byte);
                }
            }
        }
        Ok(out)
    }

    /// The image with columns of `height` pixels.
    fn resize_columns(&self, height: usize, filter: Filter) -> Result<Self> {
        let ranges = Weights::ranges(filter, self.height(), height).filter(|_| height != self.height());
        let Some(ranges) = ranges else { return Ok(self.clone()) };
        let length = self.width() * C;
        let mut out = Self::filled(self.width(), height, [0; C])?;
        let mut sums = vec![HALF; length];
        for range in ranges {
            let Some(weights) = Weights::new(filter, self.height(), height, range.clone()) else { break };
            let rows = out.data_mut().chunks_exact_mut(length).skip(range.start);
            for ((first, weights), to) in weights.iter().zip(rows) {
                sums.fill(HALF);
                let rows = self.data()[first * length..].chunks_exact(length);
                for (row, weight) in rows.zip(weights) {
                    for (sum, &value) in sums.iter_mut().zip(row) {
                        *sum = sum.wrapping_add(weight.wrapping_mul(i32::from(value)));
                    }
                }
                to.iter_mut().zip(&sums).for_each(|(to, &sum)| *to = byte(sum));
            }
        }
        Ok(out)
    }
}

/// A sum of bytes times weights as a byte. Sums have room for weights whose absolute values add up to 2, as Pillow's do.
fn byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

impl Rgba8Image {
    /// The image with another size. The colors are multiplied by alpha before and divided by it after, as Pillow resizes
    /// mode `RGBA`, so the colors of transparent pixels do not show.
    ///
    /// # Errors
    /// See [`Image8::resize`].
    pub fn resize_with_alpha(&self, width: usize, height: usize, filter: Filter) -> Result<Self> {
        if filter == Filter::Nearest || self.size() == (width, height) {
            return self.resize(width, height, filter);
        }
        Ok(self.premultiply().resize(width, height, filter)?.unpremultiply())
    }
}

/// The index of the pixel that each new one takes. The position is summed up as in Pillow (`libImaging/Geometry.c`), whose
/// rounding decides if it falls between two pixels.
fn nearest_indices(from: usize, to: usize) -> Vec<usize> {
    let step = from as f64 / to as f64;
    let mut position = step * 0.5;
    let mut next = || {
        let index = (position as usize).min(from - 1);
        position += step;
        index
    };
    (0..to).map(|_| next()).collect()
}
