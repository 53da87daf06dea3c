//! Regions of an image, and the region around a mask that is computed alone.

use std::fmt;

use crate::Gray8Image;

/// A rectangle of pixels: `left` and `top` belong to it, `right` and `bottom` do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Region {
    /// First column.
    pub left: usize,
    /// First row.
    pub top: usize,
    /// The column after the last one.
    pub right: usize,
    /// The row after the last one.
    pub bottom: usize,
}

impl fmt::Display for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}, {}) to ({}, {})", self.left, self.top, self.right, self.bottom)
    }
}

impl Region {
    /// Columns of the region.
    #[must_use]
    pub fn width(&self) -> usize {
        self.right.saturating_sub(self.left)
    }

    /// Rows of the region.
    #[must_use]
    pub fn height(&self) -> usize {
        self.bottom.saturating_sub(self.top)
    }

    /// The region with `padding` pixels more on each side, inside of an image (`get_crop_region` of AUTOMATIC1111's
    /// `modules/masking.py` and of diffusers' `VaeImageProcessor`).
    #[must_use]
    pub fn padded(&self, padding: usize, width: usize, height: usize) -> Self {
        Self {
            left: self.left.saturating_sub(padding),
            top: self.top.saturating_sub(padding),
            right: self.right.saturating_add(padding).min(width),
            bottom: self.bottom.saturating_add(padding).min(height),
        }
    }

    /// The region, wider or higher so that it has the shape of `target` (width and height), shifted to stay inside of
    /// an image of size `image`, and cut if it does not fit (`expand_crop_region` of AUTOMATIC1111's
    /// `modules/masking.py`; diffusers has the same). The region is not empty and lies inside of the image.
    #[must_use]
    pub fn expanded(&self, target: (usize, usize), image: (usize, usize)) -> Self {
        let (width, height) = (self.width() as f64, self.height() as f64);
        let aspect = target.0 as f64 / target.1 as f64;
        let mut region = *self;
        if width / height > aspect {
            let more = (width / aspect - height) as usize;
            (region.top, region.bottom) = widened(self.top, self.bottom, more, image.1);
        } else {
            let more = (height * aspect - width) as usize;
            (region.left, region.right) = widened(self.left, self.right, more, image.0);
        }
        region
    }
}

/// `start..end` with `more` pixels, half of them before it, shifted into `0..len` and cut there.
fn widened(start: usize, end: usize, more: usize, len: usize) -> (usize, usize) {
    let length = end.saturating_sub(start).saturating_add(more);
    if length >= len {
        return (0, len);
    }
    let start = start.saturating_sub(more / 2).min(len - length);
    (start, start + length)
}

impl Gray8Image {
    /// The smallest region with all pixels above 0; `None` for a mask without any.
    #[must_use]
    pub fn bounding_box(&self) -> Option<Region> {
        let mut found: Option<Region> = None;
        for y in 0..self.height() {
            let row = self.row(y);
            let Some(left) = row.iter().position(|&v| v != 0) else { continue };
            let right = row.iter().rposition(|&v| v != 0).unwrap_or(left) + 1;
            let region = found.get_or_insert(Region { left, top: y, right, bottom: y + 1 });
            region.left = region.left.min(left);
            region.right = region.right.max(right);
            region.bottom = y + 1;
        }
        found
    }
}
