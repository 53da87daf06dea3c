//! Canny's edges as OpenCV finds them (`modules/imgproc/src/canny.cpp` of OpenCV 4 and 5): `cv2.Canny(image, low, high)` with
//! an aperture of 3 and the norm `|gx| + |gy|`.

use crate::{Gray8Image, Image8, Result};

/// tan(22.5 degrees) in 1/32768, rounded as OpenCV's constant.
const TANGENT: i64 = 13573;

/// The state of a pixel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mark {
    No,
    /// An edge if it touches one.
    Maybe,
    Edge,
}

/// Edges of an image: 255 on an edge, else 0.
///
/// The gradient is Sobel's 3x3 with the border repeated. A pixel of several channels has the gradient of the channel with the
/// largest `|gx| + |gy|`. There is no blur. Pixels above `low` that are the largest across their edge remain; those above `high`
/// are edges, and so are those that touch one over the eight neighbors. If `low` is above `high`, the two are swapped.
///
/// # Errors
/// [`crate::Error::Size`] never for an image that exists.
pub fn canny<const C: usize>(image: &Image8<C>, low: f64, high: f64) -> Result<Gray8Image> {
    let (low, high) = if low > high { (high, low) } else { (low, high) };
    let (low, high) = (low.floor() as i32, high.floor() as i32);
    let (width, height) = image.size();
    let gradients = gradients(image);
    let magnitude = |x: i64, y: i64| -> i32 {
        if x < 0 || y < 0 || x >= width as i64 || y >= height as i64 {
            return 0;
        }
        gradients.get(y as usize * width + x as usize).map_or(0, |[gx, gy]| gx.abs() + gy.abs())
    };
    let mut marks = vec![Mark::No; width * height];
    let mut stack = Vec::new();
    for (i, ([gx, gy], mark)) in gradients.iter().zip(&mut marks).enumerate() {
        let (x, y) = ((i % width) as i64, (i / width) as i64);
        let n = gx.abs() + gy.abs();
        if n <= low {
            continue;
        }
        let (ax, ay) = (i64::from(gx.abs()), i64::from(gy.abs()) << 15);
        let is_largest = if ay < ax * TANGENT {
            n > magnitude(x - 1, y) && n >= magnitude(x + 1, y)
        } else if ay > ax * TANGENT + (ax << 16) {
            n > magnitude(x, y - 1) && n >= magnitude(x, y + 1)
        } else {
            let s = if (gx ^ gy) < 0 { -1 } else { 1 };
            n > magnitude(x - s, y - 1) && n > magnitude(x + s, y + 1)
        };
        if is_largest && n > high {
            *mark = Mark::Edge;
            stack.push(i);
        } else if is_largest {
            *mark = Mark::Maybe;
        }
    }
    while let Some(i) = stack.pop() {
        let (x, y) = (i % width, i / width);
        for j in y.saturating_sub(1)..(y + 2).min(height) {
            for k in x.saturating_sub(1)..(x + 2).min(width) {
                let at = j * width + k;
                if let Some(mark @ Mark::Maybe) = marks.get_mut(at) {
                    *mark = Mark::Edge;
                    stack.push(at);
                }
            }
        }
    }
    Gray8Image::new(width, height, marks.into_iter().map(|mark| if mark == Mark::Edge { 255 } else { 0 }).collect())
}

/// Sobel's gradients (x, y) of each pixel.
fn gradients<const C: usize>(image: &Image8<C>) -> Vec<[i32; 2]> {
    let (width, height) = image.size();
    let mut gradients = Vec::with_capacity(width * height);
    for y in 0..height {
        let rows = [y.saturating_sub(1), y, (y + 1).min(height - 1)].map(|y| image.row(y).as_chunks::<C>().0);
        for x in 0..width {
            let columns = [x.saturating_sub(1), x, (x + 1).min(width - 1)];
            let [above, here, below] = rows.map(|row| columns.map(|x| row[x]));
            let of_channel = |c: usize| {
                let v = |pixel: [u8; C]| i32::from(pixel[c]);
                let gx = v(above[2]) - v(above[0]) + 2 * (v(here[2]) - v(here[0])) + v(below[2]) - v(below[0]);
                let gy = v(below[0]) - v(above[0]) + 2 * (v(below[1]) - v(above[1])) + v(below[2]) - v(above[2]);
                [gx, gy]
            };
            let mut best = of_channel(0);
            for other in (1..C).map(of_channel) {
                if other[0].abs() + other[1].abs() > best[0].abs() + best[1].abs() {
                    best = other;
                }
            }
            gradients.push(best);
        }
    }
    gradients
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_square_has_a_closed_edge_and_flat_images_have_none() {
        let mut image = Gray8Image::filled(12, 10, [0]).unwrap();
        image.paste(&Gray8Image::filled(6, 4, [255]).unwrap(), 3, 3);
        let edges = canny(&image, 100.0, 200.0).unwrap();
        assert!(edges.data().iter().filter(|&&v| v == 255).count() >= 16);
        assert_eq!(edges.data(), canny(&image, 200.0, 100.0).unwrap().data());
        for (width, height) in [(1, 1), (1, 9), (9, 1), (2, 2)] {
            let flat = Gray8Image::filled(width, height, [200]).unwrap();
            assert!(canny(&flat, 0.0, 0.0).unwrap().data().iter().all(|&v| v == 0));
        }
        assert!(canny(&image, 5000.0, 9000.0).unwrap().data().iter().all(|&v| v == 0));
    }
}
