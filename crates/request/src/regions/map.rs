//! Regions in latents: rectangles, and strengths by the rules of ComfyUI (`get_area_and_mult` and
//! `resolve_areas_and_cond_masks_multidim` of comfy/samplers.py).

use kiln_media::Gray8Image;

use super::Region;

/// The latents over which the border of a rectangle fades, at most.
const FADE: usize = 8;
/// The least side of the rectangle around a mask, in latents.
const LEAST_BOUNDS: usize = 8;

/// A rectangle of latents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LatentArea {
    /// The first row.
    pub top: usize,
    /// The first column.
    pub left: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

/// A region for latents of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct RegionMap {
    /// The rectangle, if the prediction is not computed for the whole image.
    pub area: Option<LatentArea>,
    /// The strength at each latent of the rectangle, or of the whole image, row by row.
    pub strengths: Vec<f32>,
}

impl LatentArea {
    /// All latents of `(height, width)`.
    pub fn whole((height, width): (usize, usize)) -> Self {
        Self { top: 0, left: 0, height, width }
    }

    /// Adds the values of its latents, row by row, to a map whose rows have `width` latents.
    pub fn add(&self, map: &mut [f32], width: usize, values: &[f32]) {
        let rows = map.chunks_exact_mut(width.max(1)).skip(self.top);
        for (row, values) in rows.zip(values.chunks_exact(self.width.max(1))) {
            row.iter_mut().skip(self.left).zip(values).for_each(|(to, value)| *to += value);
        }
    }
}

impl Region {
    /// The region in latents of `size`, rows and columns, each of which covers `f` by `f` pixels. `None` if its rectangle begins
    /// outside of the image.
    pub fn map(&self, size: (usize, usize), f: usize) -> Option<RegionMap> {
        let mask = self.mask.as_deref().map(|mask| interpolated(mask, size));
        let asked = self.rectangle(size, f, mask.as_deref());
        let area = match asked {
            Some(area) if area.top >= size.0 || area.left >= size.1 => return None,
            Some(area) => Some(LatentArea {
                height: area.height.min(size.0 - area.top),
                width: area.width.min(size.1 - area.left),
                ..area
            }),
            None => None,
        };
        let LatentArea { top, left, height, width } = area.unwrap_or(LatentArea::whole(size));
        let strength = self.using.strength as f32;
        let mut strengths = vec![strength; height * width];
        match mask {
            Some(mask) => {
                let rows = mask.chunks_exact(size.1.max(1)).skip(top);
                for (row, to) in rows.zip(strengths.chunks_exact_mut(width.max(1))) {
                    to.iter_mut().zip(row.iter().skip(left)).for_each(|(to, value)| *to = value * strength);
                }
            }
            None if area.is_some() => {
                let (down, across) = (fade(top, height, size.0), fade(left, width, size.1));
                for (row, down) in strengths.chunks_exact_mut(width.max(1)).zip(down) {
                    row.iter_mut().zip(&across).for_each(|(value, across)| *value *= down * across);
                }
            }
            None => {}
        }
        Some(RegionMap { area, strengths })
    }

    /// The rectangle that is asked for, which may reach over the image.
    fn rectangle(&self, size: (usize, usize), f: usize, mask: Option<&[f32]>) -> Option<LatentArea> {
        let f = f.max(1);
        if let Some(pixels) = self.using.pixels {
            let [left, top, width, height] = pixels.map(|pixels| pixels / f);
            return Some(LatentArea { top, left, height: height.max(1), width: width.max(1) });
        }
        if let Some([left, top, width, height]) = self.using.share {
            // Python rounds half to even.
            let of = |share: f64, all: usize| (share * all as f64).round_ties_even() as usize;
            let (height, width) = (of(height, size.0).max(1), of(width, size.1).max(1));
            return Some(LatentArea { top: of(top, size.0), left: of(left, size.1), height, width });
        }
        let mask = mask.filter(|_| self.using.bounds)?;
        Some(bounds(mask, size.1))
    }
}

/// The factors of `length` rows from `start` on of `all`: rising from both ends that are not ends of the image.
fn fade(start: usize, length: usize, all: usize) -> Vec<f32> {
    let steps = FADE.min(length / 4);
    let mut factors = vec![1.0; length];
    let rising = |i: usize| (1.0 / steps as f64 * (i + 1) as f64) as f32;
    if start != 0 {
        factors.iter_mut().take(steps).enumerate().for_each(|(i, factor)| *factor *= rising(i));
    }
    if start + length < all {
        factors.iter_mut().rev().take(steps).enumerate().for_each(|(i, factor)| *factor *= rising(i));
    }
    factors
}

/// The smallest rectangle around the values of `mask`, rows of `width`, that are not 0, with sides of [`LEAST_BOUNDS`] at least.
fn bounds(mask: &[f32], width: usize) -> LatentArea {
    let set = |values: &mut dyn Iterator<Item = bool>| {
        let places: Vec<usize> = values.enumerate().filter(|(_, is_set)| *is_set).map(|(place, _)| place).collect();
        places.first().copied().zip(places.last().copied())
    };
    let rows = set(&mut mask.chunks_exact(width.max(1)).map(|row| row.iter().any(|value| *value != 0.0)));
    let columns = set(&mut (0..width).map(|x| mask.iter().skip(x).step_by(width.max(1)).any(|value| *value != 0.0)));
    let side = |first: usize, last: usize| (last - first + 1).max(LEAST_BOUNDS);
    match rows.zip(columns) {
        Some(((top, bottom), (left, right))) => {
            LatentArea { top, left, height: side(top, bottom), width: side(left, right) }
        }
        None => LatentArea { top: 0, left: 0, height: LEAST_BOUNDS, width: LEAST_BOUNDS },
    }
}

/// A mask in latents of `(height, width)`, 0 to 1: PyTorch's bilinear interpolation without antialiasing.
fn interpolated(mask: &Gray8Image, (height, width): (usize, usize)) -> Vec<f32> {
    let (down, across) = (taps(mask.height(), height), taps(mask.width(), width));
    let value = |row: &[u8], x: usize| row.get(x).map_or(0.0, |value| f32::from(*value) / 255.0);
    let mut values = Vec::with_capacity(height * width);
    for (y, next_y, part_y) in down {
        let (row, next) = (mask.row(y), mask.row(next_y));
        for &(x, next_x, part_x) in &across {
            let of = |row: &[u8]| value(row, x) * (1.0 - part_x) + value(row, next_x) * part_x;
            values.push(of(row) * (1.0 - part_y) + of(next) * part_y);
        }
    }
    values
}

/// For each of `to` values the two of `from` between which it lies, and the part of the second one (`align_corners` false).
fn taps(from: usize, to: usize) -> Vec<(usize, usize, f32)> {
    let scale = from as f32 / to as f32;
    let last = from.saturating_sub(1);
    let one = |i: usize| {
        let place = ((i as f32 + 0.5) * scale - 0.5).max(0.0);
        let first = (place.floor() as usize).min(last);
        (first, (first + 1).min(last), place - first as f32)
    };
    (0..to).map(one).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::regions::RegionUse;

    fn region(text: &str) -> Region {
        Region::new(text.parse::<RegionUse>().unwrap())
    }

    /// Values by hand from the rules: 16 rows from row 4 of 32, which fade over 4 rows at both ends.
    #[test]
    fn borders_inside_of_the_image_fade() {
        let map = region("pixels=128x128+0+32").map((32, 32), 8).unwrap();
        assert_eq!(map.area, Some(LatentArea { top: 4, left: 0, height: 16, width: 16 }));
        let row = |y: usize| &map.strengths[y * 16..][..16];
        assert_eq!(row(8)[..12], [1.0; 12]);
        assert_eq!(row(8)[12..], [1.0, 0.75, 0.5, 0.25].map(|value: f32| value), "the right border");
        assert_eq!([0, 1, 3, 4, 12, 15].map(|y: usize| row(y)[0]), [0.25, 0.5, 1.0, 1.0, 1.0, 0.25]);
        let large = region("share=0.5x1+0.5+0,strength=2").map((64, 128), 8).unwrap();
        assert_eq!(large.area, Some(LatentArea { top: 0, left: 64, height: 64, width: 64 }));
        assert_eq!((large.strengths[0], large.strengths[7], large.strengths[63]), (0.25, 2.0, 2.0), "8 latents");
    }

    #[test]
    fn rectangles_are_cut_and_rounded_as_there() {
        let area = |text: &str, size| region(text).map(size, 8).map(|map| map.area.unwrap());
        let cut = area("pixels=512x512+64+8", (8, 12)).unwrap();
        assert_eq!(cut, LatentArea { top: 1, left: 8, height: 7, width: 4 });
        // round(0.5 * 5) is 2 in Python.
        assert_eq!(area("share=0.5x0.1+0.5+0", (4, 5)).unwrap(), LatentArea { top: 0, left: 2, height: 1, width: 2 });
        assert_eq!(area("pixels=64x64+96+0", (8, 12)), None);
    }

    #[test]
    fn masks_are_interpolated_and_bounded() {
        let mut data = vec![0; 16 * 16];
        data.iter_mut().enumerate().filter(|(i, _)| i % 16 >= 8).for_each(|(_, value)| *value = 255);
        let mask = Arc::new(Gray8Image::new(16, 16, data).unwrap());
        let with = |text: &str| Region { mask: Some(mask.clone()), ..region(text) };
        let whole = with("mask=m,strength=0.5").map((4, 4), 8).unwrap();
        assert_eq!((whole.area, &whole.strengths[..4]), (None, &[0.0, 0.0, 0.5, 0.5][..]));
        let bounds = with("mask=m,bounds=true").map((16, 32), 8).unwrap();
        assert_eq!(bounds.area, Some(LatentArea { top: 0, left: 15, height: 16, width: 17 }));
        assert_eq!(bounds.strengths[..3], [0.25, 0.75, 1.0], "no border fades");
    }
}
