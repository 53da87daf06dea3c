//! SSIM: the structural similarity of Wang et al., "Image quality assessment: from error visibility to structural similarity", 2004.

use kiln_media::Rgb8Image;
use rayon::prelude::*;

use crate::error::{Error, Result};

/// Rows and columns of the window.
const WINDOW: usize = 11;
/// The standard deviation of its weights in pixels.
const SIGMA: f64 = 1.5;
/// The constants that keep quotients of small values stable: `(0.01 * 255)^2` and `(0.03 * 255)^2`.
const C1: f64 = 2.55 * 2.55;
const C2: f64 = 7.65 * 7.65;
/// Sums in a window: of both values, of their squares, and of their product.
const SUMS: usize = 5;

/// The mean structural similarity, 1 for equal images: the mean over the channels and over the windows of 11 by 11 pixels that lie in
/// the image. It is that of scikit-image with `gaussian_weights=True, sigma=1.5, use_sample_covariance=False, data_range=255`.
///
/// # Errors
/// [`Error::Sizes`] for different sizes, [`Error::TooSmall`] for images without a window.
pub fn ssim(a: &Rgb8Image, b: &Rgb8Image) -> Result<f64> {
    let (width, height) = a.size();
    check_sizes(a, b)?;
    if width < WINDOW || height < WINDOW {
        return Err(Error::TooSmall { metric: "SSIM", least: WINDOW, width, height });
    }
    let weights = window();
    let rows = height - WINDOW + 1;
    // Rows are summed one after the other, so that the number of threads changes no bit.
    let sums: Vec<f64> = (0..rows).into_par_iter().map(|y| row(a, b, y, &weights)).collect();
    Ok(sums.iter().sum::<f64>() / (3 * rows * (width - WINDOW + 1)) as f64)
}

/// Refuses images of different sizes.
pub(crate) fn check_sizes(a: &Rgb8Image, b: &Rgb8Image) -> Result<()> {
    let size = |image: &Rgb8Image| format!("{}x{}", image.width(), image.height());
    if a.size() == b.size() { Ok(()) } else { Err(Error::Sizes { a: size(a), b: size(b) }) }
}

/// The weights of a window in one direction.
fn window() -> [f64; WINDOW] {
    let middle = (WINDOW / 2) as f64;
    let weights: [f64; WINDOW] = std::array::from_fn(|i| (-0.5 * ((i as f64 - middle) / SIGMA).powi(2)).exp());
    let sum: f64 = weights.iter().sum();
    weights.map(|weight| weight / sum)
}

/// The sum of the similarities of all windows that begin in row `y`, over all channels.
fn row(a: &Rgb8Image, b: &Rgb8Image, y: usize, weights: &[f64; WINDOW]) -> f64 {
    // Weighted sums over the rows of the window for every value of a row.
    let mut columns = vec![[0.0; SUMS]; 3 * a.width()];
    for (i, weight) in weights.iter().enumerate() {
        for ((sums, &a), &b) in columns.iter_mut().zip(a.row(y + i)).zip(b.row(y + i)) {
            let (a, b) = (f64::from(a), f64::from(b));
            for (sum, value) in sums.iter_mut().zip([a, b, a * a, b * b, a * b]) {
                *sum += weight * value;
            }
        }
    }
    let similarity = |first: usize| {
        let mut sums = [0.0; SUMS];
        for (i, weight) in weights.iter().enumerate() {
            for (sum, column) in sums.iter_mut().zip(columns[first + 3 * i]) {
                *sum += weight * column;
            }
        }
        let [a, b, aa, bb, ab] = sums;
        // Of equal images both are the same to the bit, and the similarity is 1.
        let (variances, covariance) = ((aa - a * a) + (bb - b * b), ab - a * b);
        (2.0 * a * b + C1) * (2.0 * covariance + C2) / ((a * a + b * b + C1) * (variances + C2))
    };
    (0..columns.len() - 3 * (WINDOW - 1)).map(similarity).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flat_images_have_the_value_of_the_formula() {
        let flat = |value: u8| Rgb8Image::filled(20, 11, [value; 3]).unwrap();
        assert!((ssim(&flat(10), &flat(10)).unwrap() - 1.0).abs() < 1e-12);
        let expected = (2.0 * 10.0 * 200.0 + C1) / (100.0 + 40_000.0 + C1);
        assert!((ssim(&flat(10), &flat(200)).unwrap() - expected).abs() < 1e-9);
    }

    #[test]
    fn sizes_without_a_window_are_refused() {
        let of = |width, height| Rgb8Image::filled(width, height, [0; 3]).unwrap();
        assert!(matches!(ssim(&of(10, 11), &of(10, 11)), Err(Error::TooSmall { least: 11, .. })));
        let message = ssim(&of(20, 11), &of(11, 20)).unwrap_err().to_string();
        assert_eq!(message, "the images have different sizes: 20x11 and 11x20");
    }
}
