//! The weights of a resize along one direction, as Pillow computes them (`precompute_coeffs` and `normalize_coeffs_8bpc` of
//! `libImaging/Resample.c`): f64, then fixed point of 22 bits.

use std::f64::consts::PI;
use std::ops::Range;

use crate::Filter;

/// Bits of a weight after the point.
pub(crate) const BITS: u32 = 22;
/// A half, which rounds a sum of bytes times weights up when it is shifted by [`BITS`].
pub(crate) const HALF: i32 = 1 << (BITS - 1);

/// The weights that exist at once: 4 MiB, more than any pair of usual sizes needs. Only a single pixel may have more.
const AT_ONCE: f64 = (1 << 20) as f64;

/// The weights of new pixels that are next to each other.
pub(crate) struct Weights {
    /// Of each new pixel the first one that it is made of, and the end of its weights in `values`.
    pixels: Vec<(usize, usize)>,
    values: Vec<i32>,
}

impl Weights {
    /// The ranges of new pixels whose weights are made at once where `to` pixels are made of `from`, both at least 1: one
    /// range, or more where all weights would take megabytes. `None` for [`Filter::Nearest`], which has none.
    pub(crate) fn ranges(filter: Filter, from: usize, to: usize) -> Option<impl Iterator<Item = Range<usize>>> {
        let (_, support) = kernel(filter)?;
        let of_pixel = 2.0 * support * (from as f64 / to as f64).max(1.0) + 1.0;
        let pixels = ((AT_ONCE / of_pixel) as usize).max(1);
        Some((0..to).step_by(pixels).map(move |first| first..(first + pixels).min(to)))
    }

    /// The weights of the new pixels `range`, where `to` pixels are made of `from`, both at least 1. `None` for [`Filter::Nearest`].
    pub(crate) fn new(filter: Filter, from: usize, to: usize, range: Range<usize>) -> Option<Self> {
        let (weight, support) = kernel(filter)?;
        let scale = from as f64 / to as f64;
        // A smaller image has a wider filter.
        let widened = scale.max(1.0);
        let (support, step) = (support * widened, 1.0 / widened);
        let mut weights = Self { pixels: Vec::with_capacity(range.len()), values: Vec::new() };
        for i in range {
            let center = (i as f64 + 0.5) * scale;
            let first = (center - support + 0.5).max(0.0) as usize;
            let end = ((center + support + 0.5) as usize).min(from);
            let found: Vec<f64> =
                (0..end - first).map(|x| weight((x as f64 + first as f64 - center + 0.5) * step)).collect();
            let sum: f64 = found.iter().sum();
            let norm = if sum == 0.0 { 1.0 } else { 1.0 / sum };
            weights.values.extend(found.into_iter().map(|value| fixed(value * norm)));
            weights.pixels.push((first, weights.values.len()));
        }
        Some(weights)
    }

    /// Of each new pixel, in their order, the first pixel that it is made of, and the weights of that one and the next ones.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &[i32])> {
        let mut begin = 0;
        self.pixels.iter().map(move |&(first, end)| {
            let values = &self.values[begin..end];
            begin = end;
            (first, values)
        })
    }
}

/// A weight in fixed point, rounded half away from 0.
fn fixed(weight: f64) -> i32 {
    let scaled = weight * f64::from(1u32 << BITS);
    (if scaled < 0.0 { scaled - 0.5 } else { scaled + 0.5 }) as i32
}

/// The weight at a distance, and the distance from which on it is 0.
type Kernel = (fn(f64) -> f64, f64);

fn kernel(filter: Filter) -> Option<Kernel> {
    match filter {
        Filter::Nearest => None,
        Filter::Box => Some((|x| if x > -0.5 && x <= 0.5 { 1.0 } else { 0.0 }, 0.5)),
        Filter::Bilinear => Some((|x| (1.0 - x.abs()).max(0.0), 1.0)),
        Filter::Bicubic => Some((bicubic, 2.0)),
        Filter::Lanczos3 => Some((|x| if (-3.0..3.0).contains(&x) { sinc(x) * sinc(x / 3.0) } else { 0.0 }, 3.0)),
    }
}

/// The cubic with a = -0.5 (Keys 1981).
fn bicubic(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

fn sinc(x: f64) -> f64 {
    if x == 0.0 {
        return 1.0;
    }
    let x = x * PI;
    x.sin() / x
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights of a pixel add up to 1 but for the rounding of each, and lie within the image.
    #[test]
    fn weights_add_up() {
        for filter in [Filter::Box, Filter::Bilinear, Filter::Bicubic, Filter::Lanczos3] {
            for (from, to) in [(1, 1), (1, 9), (7, 3), (64, 64), (100, 33), (5, 1000), (1000, 1)] {
                let weights = Weights::new(filter, from, to, 0..to).unwrap();
                assert_eq!(weights.iter().count(), to);
                for (first, values) in weights.iter() {
                    let sum: i64 = values.iter().map(|&value| i64::from(value)).sum();
                    assert!((sum - (1 << BITS)).unsigned_abs() as usize <= values.len(), "{filter:?} {from} {to}");
                    assert!(!values.is_empty() && first + values.len() <= from);
                }
            }
        }
    }

    #[test]
    fn nearest_has_no_weights() {
        assert!(Weights::new(Filter::Nearest, 4, 2, 0..2).is_none());
        assert!(Weights::ranges(Filter::Nearest, 4, 2).is_none());
    }

    /// All weights of a strip of 64 megapixels would take 1.5 GB.
    #[test]
    fn weights_of_a_long_strip_are_made_in_portions() {
        let of = |from: usize, to: usize| Weights::ranges(Filter::Lanczos3, from, to).unwrap().collect::<Vec<_>>();
        assert_eq!(of(4000, 512), vec![0..512]);
        let portions = of(1_000_000, 64);
        assert!(portions.len() > 1 && portions.iter().cloned().flatten().eq(0..64), "{portions:?}");
        let whole = Weights::new(Filter::Lanczos3, 1_000_000, 64, 0..64).unwrap();
        let parts: Vec<Weights> =
            portions.into_iter().map(|range| Weights::new(Filter::Lanczos3, 1_000_000, 64, range).unwrap()).collect();
        assert!(parts.iter().all(|part| part.values.len() <= 1 << 20));
        assert!(whole.iter().eq(parts.iter().flat_map(Weights::iter)));
    }
}
