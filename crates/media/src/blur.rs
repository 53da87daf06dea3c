//! Gaussian blur as Pillow and OpenCV compute it.

use crate::{Error, Gray8Image, Image8, Result};

/// The largest radius or sigma.
const MAX_RADIUS: f32 = 1024.0;

/// Box blurs that Pillow approximates a Gaussian with.
const PASSES: usize = 3;

fn check(name: &str, value: f32) -> Result<f32> {
    if (0.0..=MAX_RADIUS).contains(&value) {
        return Ok(value);
    }
    Err(Error::Size(format!("the {name} of a blur is {value}; it is from 0 to {MAX_RADIUS}")))
}

impl<const C: usize> Image8<C> {
    /// Pillow's `ImageFilter.GaussianBlur`: three extended box blurs a direction, rounded to bytes after each, with the
    /// border repeated (`libImaging/BoxBlur.c` of Pillow 13). `radius_x` and `radius_y` are standard deviations in pixels;
    /// 0 leaves a direction as it is. diffusers' `VaeImageProcessor.blur` is this.
    ///
    /// # Errors
    /// [`Error::Size`] for a radius outside of 0 to 1024.
    pub fn pillow_gaussian_blur(&self, radius_x: f32, radius_y: f32) -> Result<Self> {
        let [x, y] = [check("radius", radius_x)?, check("radius", radius_y)?].map(BoxKernel::of_gaussian);
        let mut image = self.clone();
        let box_blurs = |kernel: BoxKernel| {
            move |line: &mut Vec<[u8; C]>, next: &mut Vec<[u8; C]>| {
                for _ in 0..PASSES {
                    kernel.blur(line, next);
                    std::mem::swap(line, next);
                }
            }
        };
        if let Some(kernel) = x {
            image.change_rows(box_blurs(kernel));
        }
        if let Some(kernel) = y {
            image.change_columns(box_blurs(kernel));
        }
        Ok(image)
    }

    /// Changes each row by a function of the row and a second buffer of its length.
    fn change_rows(&mut self, change: impl Fn(&mut Vec<[u8; C]>, &mut Vec<[u8; C]>)) {
        let width = self.width();
        let (mut line, mut next) = (vec![[0; C]; width], vec![[0; C]; width]);
        for row in self.data_mut().as_chunks_mut::<C>().0.chunks_exact_mut(width) {
            line.copy_from_slice(row);
            change(&mut line, &mut next);
            row.copy_from_slice(&line);
        }
    }

    /// Changes each column by a function of the column and a second buffer of its length.
    fn change_columns(&mut self, change: impl Fn(&mut Vec<[u8; C]>, &mut Vec<[u8; C]>)) {
        let (width, height) = self.size();
        let (mut line, mut next) = (vec![[0; C]; height], vec![[0; C]; height]);
        let pixels = self.data_mut().as_chunks_mut::<C>().0;
        for x in 0..width {
            let column = pixels.iter().skip(x).step_by(width);
            line.iter_mut().zip(column).for_each(|(to, from)| *to = *from);
            change(&mut line, &mut next);
            let column = pixels.iter_mut().skip(x).step_by(width);
            column.zip(&line).for_each(|(to, from)| *to = *from);
        }
    }
}

/// A box of `2 * radius + 1` pixels and a part of one more on each side. Weights have 24 bits behind the point.
#[derive(Clone, Copy)]
struct BoxKernel {
    radius: usize,
    weight: u32,
    end_weight: u32,
}

impl BoxKernel {
    /// The box that, applied three times, has the variance of a Gaussian (Gwosdek et al., "Theoretical foundations of
    /// Gaussian convolution by extended box filtering", 2011, equations 7 to 14). In f32 with Pillow's intermediate f64.
    fn of_gaussian(sigma: f32) -> Option<Self> {
        if sigma == 0.0 {
            return None;
        }
        let variance = sigma * sigma / PASSES as f32;
        let length = (12.0 * f64::from(variance) + 1.0).sqrt() as f32;
        let whole = ((f64::from(length) - 1.0) / 2.0).floor() as f32;
        let part = (2.0 * whole + 1.0) * (whole * (whole + 1.0) - 3.0 * variance);
        let size = whole + part / (6.0 * (variance - (whole + 1.0) * (whole + 1.0)));
        let radius = size as usize;
        let weight = ((1u32 << 24) as f32 / (size * 2.0 + 1.0)) as u32;
        let end_weight = (1u32 << 24).saturating_sub((2 * radius as u32 + 1) * weight) / 2;
        Some(Self { radius, weight, end_weight })
    }

    /// Writes the blurred `line` to `out`, of the same length.
    fn blur<const C: usize>(&self, line: &[[u8; C]], out: &mut [[u8; C]]) {
        let Some(last) = line.len().checked_sub(1) else { return };
        let at = |x: usize, right: usize, left: usize| line[(x + right).saturating_sub(left).min(last)];
        let r = self.radius;
        // The sum around the pixel before the first one: r + 1 times the first, then 0 to r - 1.
        let mut sum = line[0].map(|v| u32::from(v) * (r as u32 + 1));
        for x in 0..r {
            add(&mut sum, at(x, 0, 0));
        }
        for (x, out) in out.iter_mut().enumerate() {
            add(&mut sum, at(x, r, 0));
            let leaves = at(x, 0, r + 1);
            for (sum, v) in sum.iter_mut().zip(leaves) {
                *sum -= u32::from(v);
            }
            let enters = at(x, r + 1, 0);
            for channel in 0..C {
                let ends = u32::from(leaves[channel]) + u32::from(enters[channel]);
                out[channel] = ((sum[channel] * self.weight + ends * self.end_weight + (1 << 23)) >> 24) as u8;
            }
        }
    }
}

fn add<const C: usize>(sum: &mut [u32; C], pixel: [u8; C]) {
    for (sum, v) in sum.iter_mut().zip(pixel) {
        *sum += u32::from(v);
    }
}

impl Gray8Image {
    /// The blur of AUTOMATIC1111's masks (`processing.py`, v1.10): OpenCV's `GaussianBlur` along x, then along y, each with a
    /// kernel of `2 * int(2.5 * sigma + 0.5) + 1` weights of 8 bits, the border mirrored without its last pixel
    /// (`modules/imgproc/src/smooth.dispatch.cpp` of OpenCV 4 and 5). A sigma of 0 leaves a direction as it is.
    ///
    /// # Errors
    /// [`Error::Size`] for a sigma outside of 0 to 1024.
    pub fn opencv_gaussian_blur(&self, sigma_x: f32, sigma_y: f32) -> Result<Self> {
        let kernel = |sigma: f32| fixed_kernel(f64::from(sigma), (2.5 * f64::from(sigma) + 0.5) as usize);
        let [x, y] = [check("sigma", sigma_x)?, check("sigma", sigma_y)?].map(kernel);
        let mut image = self.clone();
        let convolve = |kernel: Vec<i32>| {
            move |line: &mut Vec<[u8; 1]>, next: &mut Vec<[u8; 1]>| {
                mirrored_convolution(line, next, &kernel);
                std::mem::swap(line, next);
            }
        };
        if x.len() > 1 {
            image.change_rows(convolve(x));
        }
        if y.len() > 1 {
            image.change_columns(convolve(y));
        }
        Ok(image)
    }
}

/// The weights of a Gaussian in 1/256, `half` to each side of the middle. The rounding error of a weight is carried to the next
/// one towards the middle, whose weight makes the sum 256.
pub(crate) fn fixed_kernel(sigma: f64, half: usize) -> Vec<i32> {
    if half == 0 {
        return vec![256];
    }
    let exponent = -0.5 / (sigma * sigma);
    let tail: Vec<f64> = (0..half).map(|i| (((half - i) * (half - i)) as f64 * exponent).exp()).collect();
    let norm = 1.0 / (2.0 * tail.iter().sum::<f64>() + 1.0);
    let mut error = 0.0;
    let mut weights: Vec<i32> = Vec::with_capacity(2 * half + 1);
    for value in &tail {
        let exact = value * norm * 256.0 + error;
        let rounded = exact.round_ties_even();
        error = exact - rounded;
        weights.push(rounded as i32);
    }
    let middle = 256 - 2 * weights.iter().sum::<i32>();
    let mirrored: Vec<i32> = weights.iter().rev().copied().collect();
    weights.push(middle);
    weights.extend(mirrored);
    weights
}

fn mirrored_convolution(line: &[[u8; 1]], out: &mut [[u8; 1]], kernel: &[i32]) {
    let half = kernel.len() / 2;
    let len = line.len();
    let source: Vec<i32> = (0..len + 2 * half).map(|i| i32::from(line[mirrored(i, half, len)][0])).collect();
    for (window, out) in source.windows(kernel.len()).zip(out) {
        let sum: i32 = window.iter().zip(kernel).map(|(v, weight)| v * weight).sum();
        *out = [((sum + 128) >> 8).clamp(0, 255) as u8];
    }
}

/// The index of `i - before`, mirrored at both ends as often as needed: `2 1 | 0 1 2 | 1 0`.
pub(crate) fn mirrored(i: usize, before: usize, len: usize) -> usize {
    let period = 2 * (len - 1);
    if period == 0 {
        return 0;
    }
    let i = (i as i64 - before as i64).rem_euclid(period as i64) as usize;
    i.min(period - i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blur_of_nothing_and_of_one_color_changes_nothing() {
        let image = Gray8Image::new(3, 2, vec![9, 200, 31, 4, 255, 0]).unwrap();
        assert_eq!(image.pillow_gaussian_blur(0.0, 0.0).unwrap(), image);
        assert_eq!(image.opencv_gaussian_blur(0.0, 0.0).unwrap(), image);
        let flat = Gray8Image::filled(5, 3, [255]).unwrap();
        for sigma in [0.3, 1.0, 7.5, 1024.0] {
            assert_eq!(flat.pillow_gaussian_blur(sigma, sigma).unwrap(), flat, "{sigma}");
            assert_eq!(flat.opencv_gaussian_blur(sigma, sigma).unwrap(), flat, "{sigma}");
        }
    }

    #[test]
    fn a_radius_has_bounds() {
        let image = Gray8Image::filled(2, 2, [1]).unwrap();
        for sigma in [-1.0, f32::NAN, f32::INFINITY, 1025.0] {
            assert!(matches!(image.pillow_gaussian_blur(sigma, 1.0), Err(Error::Size(_))));
            assert!(matches!(image.opencv_gaussian_blur(1.0, sigma), Err(Error::Size(_))));
        }
    }
}
