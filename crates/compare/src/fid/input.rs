//! Images as the network takes them.

use kiln_media::Rgb8Image;

/// Width and height.
pub(super) const SIDE: usize = 299;

/// Two neighboring pixels of a line, and how much of the second one counts.
struct Neighbors {
    first: usize,
    second: usize,
    part: f32,
}

/// The neighbors of each of [`SIDE`] pixels in a line of `size`: centers of pixels fit centers, and what lies outside counts as
/// the pixel at the border.
fn neighbors(size: usize) -> Vec<Neighbors> {
    let scale = size as f32 / SIDE as f32;
    let of = |place: usize| {
        let source = (scale * (place as f32 + 0.5) - 0.5).max(0.0);
        let first = (source as usize).min(size.saturating_sub(1));
        Neighbors { first, second: (first + 1).min(size.saturating_sub(1)), part: source - first as f32 }
    };
    (0..SIDE).map(of).collect()
}

/// Colors from -1 to 1, `(299, 299, 3)`. The image is resized as PyTorch's `interpolate` does with `mode="bilinear"`,
/// `align_corners=False` and without `antialias`: of four pixels, even if it becomes much smaller.
pub(super) fn input(image: &Rgb8Image) -> Vec<f32> {
    let (width, height) = image.size();
    let (columns, rows) = (neighbors(width), neighbors(height));
    let mut values = Vec::with_capacity(SIDE * SIDE * 3);
    for y in &rows {
        let (upper, lower) = (image.row(y.first), image.row(y.second));
        for x in &columns {
            for color in 0..3 {
                let line = |row: &[u8]| {
                    let [first, second] = [x.first, x.second].map(|x| f32::from(row[3 * x + color]) / 255.0);
                    first * (1.0 - x.part) + second * x.part
                };
                values.push(2.0 * (line(upper) * (1.0 - y.part) + line(lower) * y.part) - 1.0);
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_images_stay_flat_and_edges_lie_in_the_middle() {
        let flat = |side: usize| input(&Rgb8Image::filled(side, side, [0, 51, 255]).unwrap());
        for side in [1, 40, 299, 700] {
            assert!(
                flat(side).chunks(3).all(|p| p[0] == -1.0 && (p[1] + 0.6).abs() < 1e-6 && (p[2] - 1.0).abs() < 1e-6)
            );
        }
        let halves = Rgb8Image::new(2, 1, vec![0, 0, 0, 255, 255, 255]).unwrap();
        let found = input(&halves);
        assert_eq!((found[0], found[3 * 149], found[3 * 298]), (-1.0, 0.0, 1.0));
    }
}
