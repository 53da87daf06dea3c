//! Two images as one, as `ImageStitch` of comfy_extras/nodes_images.py joins them.

use kiln_media::{Filter, Rgb8Image};
use kiln_request::comfy::{Stitch, StitchSide};

use crate::error::Refused;

/// Width and height.
type Size = (usize, usize);

/// The sizes of a joined image and of its second part.
struct Sizes {
    whole: Size,
    second: Size,
}

/// The size of an image of `size` that is joined with another one of `other`.
///
/// # Errors
/// [`Refused`] if the second image has no pixels in the first one's height or width.
pub(super) fn stitched_size(size: Size, other: Size, how: &Stitch) -> Result<Size, Refused> {
    let (first, second) = if how.other_is_first { (other, size) } else { (size, other) };
    sizes(first, second, how).map(|sizes| sizes.whole)
}

/// An image joined with another one.
///
/// # Errors
/// Errors of [`stitched_size`].
pub(super) fn stitched(image: &Rgb8Image, other: &Rgb8Image, how: &Stitch) -> Result<Rgb8Image, Refused> {
    let (first, second) = if how.other_is_first { (other, image) } else { (image, other) };
    let Sizes { whole, second: size } = sizes(first.size(), second.size(), how)?;
    let second = second.resize(size.0, size.1, Filter::Lanczos3).map_err(Refused::unread)?;
    let (before, after) = if how.side.is_before() { (&second, first) } else { (first, &second) };
    let mut joined = Rgb8Image::filled(whole.0, whole.1, how.border).map_err(Refused::unread)?;
    // The middle of a smaller one is the middle of the whole; an odd pixel is on the right or below.
    let middle = |side: usize, whole: usize| ((whole - side) / 2) as i64;
    if how.side.is_horizontal() {
        joined.paste(before, 0, middle(before.height(), whole.1));
        joined.paste(after, (before.width() + how.spacing) as i64, middle(after.height(), whole.1));
    } else {
        joined.paste(before, middle(before.width(), whole.0), 0);
        joined.paste(after, middle(after.width(), whole.0), (before.height() + how.spacing) as i64);
    }
    if how.spacing > 0 {
        let (width, height, left, top) = if how.side.is_horizontal() {
            (how.spacing, whole.1, before.width(), 0)
        } else {
            (whole.0, how.spacing, 0, before.height())
        };
        let space = Rgb8Image::filled(width, height, how.color).map_err(Refused::unread)?;
        joined.paste(&space, left as i64, top as i64);
    }
    Ok(joined)
}

fn sizes(first: Size, second: Size, how: &Stitch) -> Result<Sizes, Refused> {
    let ratio = second.0 as f64 / second.1 as f64;
    // Python's `int` cuts.
    let second = match (how.matches, how.side) {
        (false, _) => second,
        (true, StitchSide::Left | StitchSide::Right) => ((first.1 as f64 * ratio) as usize, first.1),
        (true, StitchSide::Up | StitchSide::Down) => (first.0, (first.0 as f64 / ratio) as usize),
    };
    if second.0 == 0 || second.1 == 0 {
        let found = format!("a second image of {}x{} in the size of the first", second.0, second.1);
        return Err(Refused::value("init", found, "at least one pixel"));
    }
    let sum = |one: usize, other: usize| one.saturating_add(other).saturating_add(how.spacing);
    let whole = if how.side.is_horizontal() {
        (sum(first.0, second.0), first.1.max(second.1))
    } else {
        (first.0.max(second.0), sum(first.1, second.1))
    };
    Ok(Sizes { whole, second })
}

#[cfg(test)]
mod tests {
    use kiln_request::comfy::{GraphImage, Named};

    use super::*;

    const GRAY: [u8; 3] = [9; 3];
    const WHITE: [u8; 3] = [255; 3];

    fn how(side: StitchSide, matches: bool, spacing: usize) -> Stitch {
        let file = Named { name: "b.png".into(), node: "1".into(), class: "LoadImage".into(), input: "image" };
        let other = GraphImage { file, changes: Vec::new() };
        Stitch { other, other_is_first: false, side, matches, spacing, color: [0, 0, 255], border: WHITE }
    }

    fn filled(width: usize, height: usize, color: [u8; 3]) -> Rgb8Image {
        Rgb8Image::filled(width, height, color).unwrap()
    }

    fn row(image: &Rgb8Image, y: usize) -> Vec<u8> {
        image.row(y).chunks_exact(3).map(|pixel| pixel[0]).collect()
    }

    #[test]
    fn the_second_image_gets_the_side_of_the_first() {
        let size = |side, one, other| stitched_size(one, other, &how(side, true, 0)).unwrap();
        // int(100 * 50 / 30) and int(100 / (50 / 30)).
        assert_eq!(size(StitchSide::Right, (80, 100), (50, 30)), (80 + 166, 100));
        assert_eq!(size(StitchSide::Left, (80, 100), (50, 30)), (80 + 166, 100));
        assert_eq!(size(StitchSide::Down, (100, 80), (50, 30)), (100, 80 + 60));
        assert_eq!(size(StitchSide::Up, (100, 80), (50, 30)), (100, 80 + 60));
        assert!(stitched_size((1, 1), (1, 30), &how(StitchSide::Right, true, 0)).is_err());
        let left = stitched(&filled(4, 2, [7; 3]), &filled(2, 1, GRAY), &how(StitchSide::Left, true, 2)).unwrap();
        assert_eq!((left.size(), row(&left, 1)), ((10, 2), vec![9, 9, 9, 9, 0, 0, 7, 7, 7, 7]));
    }

    #[test]
    fn smaller_images_get_borders_and_the_space_has_its_color() {
        let down = stitched(&filled(5, 1, [7; 3]), &filled(2, 1, GRAY), &how(StitchSide::Down, false, 2)).unwrap();
        assert_eq!(down.size(), (5, 4));
        assert_eq!([row(&down, 0), row(&down, 3)], [vec![7; 5], vec![255, 9, 9, 255, 255]]);
        assert_eq!([down.row(1), down.row(2)], [[0, 0, 255].repeat(5), [0, 0, 255].repeat(5)]);
        let other_first = Stitch { other_is_first: true, ..how(StitchSide::Right, false, 0) };
        let right = stitched(&filled(1, 1, [7; 3]), &filled(2, 2, GRAY), &other_first).unwrap();
        assert_eq!([row(&right, 0), row(&right, 1)], [vec![9, 9, 7], vec![9, 9, 255]]);
    }
}
