//! Borders around an image, for a run that draws what lies outside of it.

use crate::{Error, Gray8Image, Result, Rgb8Image};

/// Pixels to add on each side.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Borders {
    /// Rows above.
    pub top: usize,
    /// Columns on the left.
    pub left: usize,
    /// Rows below.
    pub bottom: usize,
    /// Columns on the right.
    pub right: usize,
}

/// The image with borders, and the mask of them: 255 on the border, 0 on the image. A pixel of the border has the color of
/// the nearest pixel of the image, so that nothing but the mask separates the two.
///
/// # Errors
/// [`Error::Size`] if the result has more than [`crate::MAX_PIXELS`] pixels.
pub fn extend(image: &Rgb8Image, borders: Borders) -> Result<(Rgb8Image, Gray8Image)> {
    let Borders { top, left, bottom, right } = borders;
    let side = |before: usize, side: usize, after: usize| {
        let sum = before.checked_add(side).and_then(|sum| sum.checked_add(after));
        sum.ok_or_else(|| Error::Size(format!("borders of {before} and {after} pixels are too large")))
    };
    let (width, height) = (side(left, image.width(), right)?, side(top, image.height(), bottom)?);
    let mut mask = Gray8Image::filled(width, height, [255])?;
    mask.paste(&Gray8Image::filled(image.width(), image.height(), [0])?, left as i64, top as i64);
    let mut data = Vec::with_capacity(width * height * 3);
    for y in 0..height {
        let row = image.row(y.saturating_sub(top).min(image.height() - 1)).as_chunks::<3>().0;
        if let (Some(first), Some(last)) = (row.first(), row.last()) {
            data.extend(std::iter::repeat_n(first, left).chain(row).chain(std::iter::repeat_n(last, right)).flatten());
        }
    }
    Ok((Rgb8Image::new(width, height, data)?, mask))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_border_has_the_nearest_color_and_is_the_mask() {
        let image = Gray8Image::new(2, 2, vec![1, 2, 3, 4]).unwrap().to_rgb();
        let (extended, mask) = extend(&image, Borders { top: 1, left: 2, bottom: 0, right: 1 }).unwrap();
        assert_eq!(extended.to_gray().data(), [1, 1, 1, 2, 2, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4]);
        assert_eq!(mask.data(), [255, 255, 255, 255, 255, 255, 255, 0, 0, 255, 255, 255, 0, 0, 255]);
        assert_eq!(extend(&image, Borders::default()).unwrap().0, image);
        for borders in
            [Borders { top: usize::MAX, ..Borders::default() }, Borders { left: 1 << 40, ..Borders::default() }]
        {
            assert!(matches!(extend(&image, borders), Err(Error::Size(_))));
        }
    }
}
