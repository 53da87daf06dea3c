//! How an image of another shape becomes an image of the size of the run.

use crate::{Filter, Image8, Result};

/// The resize modes of AUTOMATIC1111 (`resize_image` of `modules/images.py`), which diffusers' `VaeImageProcessor.resize` has
/// under other names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ResizeMode {
    /// The whole image, its shape changed: "Just resize", mode 0, diffusers' `default`.
    #[default]
    Stretch,
    /// The middle of the image, its shape kept: "Crop and resize", mode 1, diffusers' `crop`.
    Crop,
    /// The whole image, its shape kept, and bars with the colors of its edge: "Resize and fill", mode 2, diffusers' `fill`.
    /// In both programs the last line stays 0 if the target's side is odd and the image's is even.
    Fill,
}

/// Where a resized image lies on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// Width of the resized image.
    pub width: usize,
    /// Height of the resized image.
    pub height: usize,
    /// The column of the target at which it begins; negative if it is cropped.
    pub left: i64,
    /// The row of the target at which it begins; negative if it is cropped.
    pub top: i64,
}

impl ResizeMode {
    /// Where an image of size `from` (width and height) lies on a target of size `to`. No side is 0.
    #[must_use]
    pub fn placement(self, from: (usize, usize), to: (usize, usize)) -> Placement {
        let (aspect, own) = (to.0 as f64 / to.1 as f64, from.0 as f64 / from.1 as f64);
        let by_height = || (from.0 * to.1).checked_div(from.1).unwrap_or(1).max(1);
        let by_width = || (from.1 * to.0).checked_div(from.0).unwrap_or(1).max(1);
        let (width, height) = match self {
            Self::Stretch => to,
            Self::Crop if aspect > own => (to.0, by_width()),
            Self::Crop => (by_height(), to.1),
            Self::Fill if aspect < own => (to.0, by_width()),
            Self::Fill => (by_height(), to.1),
        };
        let middle = |to: usize, of: usize| (to / 2) as i64 - (of / 2) as i64;
        Placement { width, height, left: middle(to.0, width), top: middle(to.1, height) }
    }
}

impl<const C: usize> Image8<C> {
    /// The image with `width` x `height` pixels.
    ///
    /// # Errors
    /// [`crate::Error::Size`] for a side of 0 and more than [`crate::MAX_PIXELS`] pixels, also before cropping.
    pub fn resize_to(&self, mode: ResizeMode, width: usize, height: usize, filter: Filter) -> Result<Self> {
        let mut target = Self::filled(width, height, [0; C])?;
        let place = mode.placement(self.size(), (width, height));
        let resized = self.resize(place.width, place.height, filter)?;
        if resized.size() == target.size() {
            return Ok(resized);
        }
        target.paste(&resized, place.left, place.top);
        if mode == ResizeMode::Fill && place.top > 0 {
            let bar = place.top as usize;
            let (first, second) = (resized.row(0), resized.row(1));
            let (last, before) = (resized.row(place.height - 1), resized.row(place.height.wrapping_sub(2)));
            target.paste(&Self::new(width, bar, edge(first, second).repeat(bar))?, 0, 0);
            target.paste(&Self::new(width, bar, edge(last, before).repeat(bar))?, 0, (bar + place.height) as i64);
        } else if mode == ResizeMode::Fill && place.left > 0 {
            let bar = place.left as usize;
            let column = |x: usize| -> Vec<u8> {
                (0..resized.height())
                    .flat_map(|y| resized.row(y).chunks_exact(C).nth(x).unwrap_or_default())
                    .copied()
                    .collect()
            };
            let bar_of =
                |edge: Vec<u8>| -> Vec<u8> { edge.chunks_exact(C).flat_map(|pixel| pixel.repeat(bar)).collect() };
            let (first, second) = (column(0), column(1));
            let (last, before) = (column(place.width - 1), column(place.width.wrapping_sub(2)));
            target.paste(&Self::new(bar, height, bar_of(edge(&first, &second)))?, 0, 0);
            target.paste(&Self::new(bar, height, bar_of(edge(&last, &before)))?, (bar + place.width) as i64, 0);
        }
        Ok(target)
    }
}

/// The line of a bar: both programs resize a box of no width at the edge, with Pillow's bicubic filter, which gives `1.125` of
/// the outermost line and `-0.125` of the next. An image of one line repeats it.
fn edge(outer: &[u8], inner: &[u8]) -> Vec<u8> {
    if inner.is_empty() {
        return outer.to_vec();
    }
    let mix = |(&outer, &inner): (&u8, &u8)| ((9 * i32::from(outer) - i32::from(inner) + 4) >> 3).clamp(0, 255) as u8;
    outer.iter().zip(inner).map(mix).collect()
}
