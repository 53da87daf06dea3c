//! Latents of another size: `torch.nn.functional.interpolate` in f32.
//!
//! Sources of the formulas: `UpSample.h` and `UpSampleKernel.cpp` of PyTorch 2.12 (`aten/src/ATen/native`), with
//! `align_corners=False` and the size given.

use candle_core::{Device, Tensor};
use kiln_request::LatentFilter;

use crate::error::Result;

/// The input values that one output value is made of: the first one's place, and their weights. Places beyond an edge are
/// those at the edge.
struct Taps {
    first: isize,
    weights: Vec<f32>,
}

/// Latents `(n, c, h, w)` in f32 on any device with `height` rows and `width` columns, in the host's memory.
///
/// # Errors
/// Errors of candle.
pub(crate) fn interpolate(latents: &Tensor, (height, width): (usize, usize), filter: LatentFilter) -> Result<Tensor> {
    let (n, c, h, w) = latents.dims4()?;
    let values = latents.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
    let (rows, columns) = (taps(h, height, filter), taps(w, width, filter));
    let mut result = Vec::with_capacity(n * c * height * width);
    for map in values.chunks_exact((h * w).max(1)) {
        // Rows of the output's width first, as PyTorch's separable kernels do.
        let wide: Vec<f32> =
            map.chunks_exact(w.max(1)).flat_map(|row| columns.iter().map(|taps| taps.of(w, |x| row[x]))).collect();
        for taps in &rows {
            result.extend((0..width).map(|x| taps.of(h, |y| wide[y * width + x])));
        }
    }
    Ok(Tensor::from_vec(result, (n, c, height, width), &Device::Cpu)?)
}

impl Taps {
    /// The weighted sum of a line of `n` values.
    fn of(&self, n: usize, value: impl Fn(usize) -> f32) -> f32 {
        let last = n as isize - 1;
        let places = self.first..;
        places.zip(&self.weights).map(|(place, weight)| weight * value(place.clamp(0, last) as usize)).sum()
    }
}

/// The taps of each of `to` values over `from` values.
fn taps(from: usize, to: usize, filter: LatentFilter) -> Vec<Taps> {
    let scale = from as f32 / to as f32;
    (0..to).map(|i| tap(i, from, scale, filter)).collect()
}

fn tap(i: usize, from: usize, scale: f32, filter: LatentFilter) -> Taps {
    // PyTorch computes places in f32 for tensors of f32.
    let source = scale * (i as f32 + 0.5) - 0.5;
    let nearest = |place: f32| Taps { first: place.floor() as isize, weights: vec![1.0] };
    match filter {
        LatentFilter::Nearest => nearest(i as f32 * scale),
        LatentFilter::NearestExact => nearest((i as f32 + 0.5) * scale),
        LatentFilter::Bilinear => {
            let source = source.max(0.0);
            let part = source - source.floor();
            Taps { first: source.floor() as isize, weights: vec![1.0 - part, part] }
        }
        LatentFilter::Bicubic => {
            let part = source - source.floor();
            let weights = [part + 1.0, part, 1.0 - part, 2.0 - part].map(|x| cubic(x, -0.75));
            Taps { first: source.floor() as isize - 1, weights: weights.to_vec() }
        }
        LatentFilter::BilinearAntialiased => antialiased(i, from, scale, 1.0, |x| (1.0 - x.abs()).max(0.0)),
        LatentFilter::BicubicAntialiased => antialiased(i, from, scale, 2.0, |x| cubic(x.abs(), -0.5)),
    }
}

/// The weights of a filter whose half width is `support` input pixels, or output pixels where the result is smaller. They sum
/// to 1.
fn antialiased(i: usize, from: usize, scale: f32, support: f32, filter: impl Fn(f32) -> f32) -> Taps {
    let widened = scale.max(1.0);
    let (center, support) = (scale * (i as f32 + 0.5), support * widened);
    let first = ((center - support + 0.5) as isize).max(0);
    let end = ((center + support + 0.5) as isize).min(from as isize);
    let weights: Vec<f32> = (first..end).map(|place| filter((place as f32 - center + 0.5) / widened)).collect();
    let sum: f32 = weights.iter().sum();
    Taps { first, weights: weights.into_iter().map(|weight| weight / sum).collect() }
}

/// Keys' cubic convolution at distance `x` from 0 to 2.
fn cubic(x: f32, a: f32) -> f32 {
    if x <= 1.0 {
        ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Deserialize)]
    struct Case {
        filter: LatentFilter,
        from: (usize, usize),
        to: (usize, usize),
        values: Vec<f32>,
        results: Vec<f32>,
    }

    /// `tests/fixtures/hires/interpolate.json` is from `tests/reference/hires.py`.
    #[test]
    fn results_are_pytorchs() {
        let text = std::fs::read_to_string(kiln_testkit::fixtures("hires/interpolate.json")).unwrap();
        let cases: Vec<Case> = serde_json::from_str(&text).unwrap();
        for Case { filter, from: (h, w), to, values, results } in &cases {
            let latents = Tensor::from_slice(values, (1, 1, *h, *w), &Device::Cpu).unwrap();
            let found = interpolate(&latents, *to, *filter).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
            assert_eq!(found.len(), results.len());
            for (found, expected) in found.iter().zip(results) {
                assert!((found - expected).abs() < 1e-5, "{filter:?} {h}x{w} to {to:?}: {found} and not {expected}");
            }
        }
        assert!(LatentFilter::ALL.iter().all(|filter| cases.iter().any(|case| case.filter == *filter)));
    }

    #[test]
    fn images_and_channels_keep_apart() {
        let values: Vec<f32> = (0..2 * 3 * 4).flat_map(|i| [i as f32; 6]).collect();
        let latents = Tensor::from_vec(values, (2, 12, 2, 3), &Device::Cpu).unwrap();
        for filter in LatentFilter::ALL {
            let result = interpolate(&latents, (5, 7), filter).unwrap();
            assert_eq!(result.dims(), [2, 12, 5, 7]);
            for (i, map) in result.flatten_all().unwrap().to_vec1::<f32>().unwrap().chunks(35).enumerate() {
                assert!(map.iter().all(|value| (value - i as f32).abs() < 1e-4), "{filter:?} {i}: {map:?}");
            }
        }
    }
}
