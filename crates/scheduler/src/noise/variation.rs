//! AUTOMATIC1111's variations of the first noise: a second seed mixed in, and noise of another size.
//!
//! The noise of an image is `(c, h, w)` in row-major order here, as its generator yields it.

/// Channels, height and width.
pub(super) type Shape = (usize, usize, usize);

/// Interpolates spherically from `low` to `high` by `strength`, column by column.
///
/// Upstream is meant to interpolate whole images, but its input is one image without a batch dimension, so that the
/// norm runs over the height. All existing images with a variation seed are made this way.
pub(super) fn slerp(strength: f64, low: &[f32], high: &[f32], (c, h, w): Shape) -> Vec<f32> {
    let columns = || (0..c).flat_map(|channel| (0..w).map(move |x| channel * h * w + x));
    let cosine = |first: usize| {
        let product = |a: &[f32], b: &[f32]| -> f64 {
            (0..h).map(|y| f64::from(a[first + y * w]) * f64::from(b[first + y * w])).sum()
        };
        product(low, high) / (product(low, low) * product(high, high)).sqrt()
    };
    let mut mixed = vec![0.0; low.len()];
    let mean = columns().map(cosine).sum::<f64>() / (c * w) as f64;
    for first in columns() {
        // Two equal noises have no angle between them.
        let (a, b) = if mean > 0.9995 {
            (strength, 1.0 - strength)
        } else {
            let angle = cosine(first).acos();
            (((1.0 - strength) * angle).sin() / angle.sin(), (strength * angle).sin() / angle.sin())
        };
        for at in (0..h).map(|y| first + y * w) {
            mixed[at] = (a * f64::from(low[at]) + b * f64::from(high[at])) as f32;
        }
    }
    mixed
}

/// Copies `noise` of `(c, from_h, from_w)` into the center of `target` of `(c, h, w)`, and cuts off what is outside.
pub(super) fn paste(noise: &[f32], (c, from_h, from_w): Shape, target: &mut [f32], (_, h, w): Shape) {
    let (rows, columns) = (Overlap::new(from_h, h), Overlap::new(from_w, w));
    for channel in 0..c {
        for y in 0..rows.len {
            let from = (channel * from_h + rows.from + y) * from_w + columns.from;
            let to = (channel * h + rows.to + y) * w + columns.to;
            target[to..to + columns.len].copy_from_slice(&noise[from..from + columns.len]);
        }
    }
}

/// The overlap of a range that is centered in another.
struct Overlap {
    from: usize,
    to: usize,
    len: usize,
}

impl Overlap {
    fn new(from: usize, to: usize) -> Self {
        if to >= from {
            return Self { from: 0, to: (to - from) / 2, len: from };
        }
        // The cut is rounded up and applied on both sides: with an odd difference the last value of the target is not
        // changed.
        let cut = (from - to).div_ceil(2);
        Self { from: cut, to: 0, len: from.saturating_sub(2 * cut) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn noise_of_another_size_is_centered() {
        let noise: Vec<f32> = (1..=9).map(|i| i as f32).collect();
        let mut larger = vec![0.0; 20];
        paste(&noise, (1, 3, 3), &mut larger, (1, 4, 5));
        #[rustfmt::skip]
        assert_eq!(larger, [
            0.0, 1.0, 2.0, 3.0, 0.0,
            0.0, 4.0, 5.0, 6.0, 0.0,
            0.0, 7.0, 8.0, 9.0, 0.0,
            0.0, 0.0, 0.0, 0.0, 0.0,
        ]);
        let mut smaller = vec![0.0; 2];
        paste(&noise, (1, 3, 3), &mut smaller, (1, 1, 2));
        assert_eq!(smaller, [5.0, 0.0]);
    }

    #[test]
    fn the_ends_of_a_turn_are_both_noises() {
        let (low, high) = (vec![1.0, 2.0, -1.0, 0.5], vec![0.5, -1.0, 2.0, 1.0]);
        let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6);
        assert!(close(&slerp(0.0, &low, &high, (1, 2, 2)), &low));
        assert!(close(&slerp(1.0, &low, &high, (1, 2, 2)), &high));
        // torch: A1111's slerp(0.3, ...) of these as (1, 2, 2).
        let expected = [1.5062677, 1.6320918, 0.2192868, 1.2708001];
        assert!(close(&slerp(0.3, &low, &high, (1, 2, 2)), &expected), "{:?}", slerp(0.3, &low, &high, (1, 2, 2)));
        assert!(close(&slerp(0.3, &low, &low, (1, 2, 2)), &low));
    }
}
