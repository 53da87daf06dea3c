//! Gaussian blur as OpenCV computes it for a sigma alone: `cv2.GaussianBlur(image, (0, 0), sigma)`
//! (`modules/imgproc/src/smooth.dispatch.cpp`), the border mirrored without its last pixel.

use crate::blur::{fixed_kernel, mirrored};
use crate::{Image8, Result};

impl<const C: usize> Image8<C> {
    /// The blur of bytes: weights of 8 bits over about three sigma to each side, both passes in whole numbers, rounded once.
    ///
    /// # Errors
    /// [`crate::Error::Size`] never for an image that exists.
    pub(super) fn opencv_blur(&self, sigma: f64) -> Result<Self> {
        let kernel = fixed_kernel(sigma, half_of(sigma, 3.0));
        let product = |v: u32, w: i32| v * w.unsigned_abs();
        let values: Vec<u32> = self.data().iter().map(|&v| u32::from(v)).collect();
        let across = pass::<C, _, _, u32>(&values, self.size(), &kernel, Direction::Rows, product);
        let sums = pass::<C, _, _, u32>(&across, self.size(), &kernel, Direction::Columns, product);
        Self::new(
            self.width(),
            self.height(),
            sums.into_iter().map(|sum| ((sum + (1 << 15)) >> 16).min(255) as u8).collect(),
        )
    }

    /// The blur of the values in f32, over about four sigma to each side, `(h, w, C)`. Sums are in f64 and rounded to f32 after
    /// each pass.
    pub(super) fn opencv_blur_f32(&self, sigma: f64) -> Vec<f32> {
        let kernel = kernel_f32(sigma, half_of(sigma, 4.0));
        let product = |v: f32, w: f32| f64::from(v) * f64::from(w);
        let to_f32 = |sums: Vec<f64>| sums.into_iter().map(|sum| sum as f32).collect::<Vec<f32>>();
        let values: Vec<f32> = self.data().iter().map(|&v| f32::from(v)).collect();
        let across = to_f32(pass::<C, _, _, f64>(&values, self.size(), &kernel, Direction::Rows, product));
        to_f32(pass::<C, _, _, f64>(&across, self.size(), &kernel, Direction::Columns, product))
    }
}

/// Weights to each side of the middle, for a blur that reaches over `reach` sigma.
fn half_of(sigma: f64, reach: f64) -> usize {
    ((sigma * reach * 2.0 + 1.0).round_ties_even() as usize | 1) / 2
}

/// `getGaussianKernel` in f32.
fn kernel_f32(sigma: f64, half: usize) -> Vec<f32> {
    let value = |i: usize| (-0.5 * (i as f64 - half as f64).powi(2) / (sigma * sigma)).exp();
    let values: Vec<f64> = (0..=2 * half).map(value).collect();
    let sum: f64 = values.iter().sum();
    values.iter().map(|value| (value / sum) as f32).collect()
}

/// The direction of a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Rows,
    Columns,
}

/// The sums of `values`, `(h, w, C)`, under the kernel along rows or columns.
fn pass<const C: usize, V: Copy, W: Copy, S: std::iter::Sum>(
    values: &[V],
    (width, height): (usize, usize),
    kernel: &[W],
    direction: Direction,
    product: impl Fn(V, W) -> S,
) -> Vec<S> {
    let half = kernel.len() / 2;
    let len = if direction == Direction::Rows { width } else { height };
    let places: Vec<usize> = (0..len + 2 * half).map(|i| mirrored(i, half, len)).collect();
    let mut sums = Vec::with_capacity(values.len());
    for y in 0..height {
        for x in 0..width {
            let at = if direction == Direction::Rows { x } else { y };
            let window = &places[at..at + kernel.len()];
            for c in 0..C {
                let value = |&place: &usize| match direction {
                    Direction::Rows => values[(y * width + place) * C + c],
                    Direction::Columns => values[(place * width + x) * C + c],
                };
                sums.push(window.iter().map(value).zip(kernel).map(|(v, &w)| product(v, w)).sum());
            }
        }
    }
    sums
}
