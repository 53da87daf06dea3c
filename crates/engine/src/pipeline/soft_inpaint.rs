//! Soft inpainting: masks that are gray keep a part of the input (AUTOMATIC1111's `extensions-builtin/soft-inpainting` of v1.10).

use candle_core::{D, DType, Device, Tensor};
use kiln_media::Gray8Image;
use kiln_request::ImageOptions;

use crate::error::Result;

/// The options of soft inpainting, by the extension's names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct SoftInpainting {
    mask_blend_power: f64,
    mask_blend_scale: f64,
    detail_preservation: f64,
    mask_influence: f64,
    difference_threshold: f64,
    difference_contrast: f64,
}

impl SoftInpainting {
    pub(crate) fn new(options: &ImageOptions) -> Self {
        Self {
            mask_blend_power: options.soft_schedule_bias,
            mask_blend_scale: options.soft_preservation,
            detail_preservation: options.soft_contrast_boost,
            mask_influence: options.soft_mask_influence,
            difference_threshold: options.soft_difference_threshold,
            difference_contrast: options.soft_difference_contrast,
        }
    }

    /// `latent_blend` with `get_modified_nmask`: the image between `kept` and `found` at the noise level `sigma`, all
    /// `(n, c, h, w)` in f32. With `t = mask ^ (sigma ^ power * scale)` it has the direction of `kept (1 - t) + found t` over the
    /// channels, and the length `(|kept|^p (1 - t) + |found|^p t)^(1/p)`.
    pub(crate) fn blend(&self, kept: &Tensor, found: &Tensor, mask: &Tensor, sigma: f64) -> Result<Tensor> {
        let exponent = sigma.powf(self.mask_blend_power) * self.mask_blend_scale;
        let t = mask.to_dtype(DType::F64)?.powf(exponent)?;
        let rest = t.affine(-1.0, 1.0)?;
        let mixed = (kept.mul(&rest.to_dtype(DType::F32)?)? + found.mul(&t.to_dtype(DType::F32)?)?)?;
        let p = self.detail_preservation;
        let (t, rest) = (t.narrow(1, 0, 1)?, rest.narrow(1, 0, 1)?);
        let wanted = (length(kept)?.powf(p)?.mul(&rest)? + length(found)?.powf(p)?.mul(&t)?)?.powf(1.0 / p)?;
        let factor = wanted.div(&(length(&mixed)? + 1e-5)?)?.to_dtype(DType::F32)?;
        Ok(mixed.broadcast_mul(&factor)?)
    }

    /// `apply_adaptive_masks` up to the size of the latents: where images changed from `before` to `after`, both `(n, c, h, w)`, the
    /// result is seen (255), elsewhere the input (0).
    pub(crate) fn visible(&self, before: &Tensor, after: &Tensor, mask: &Tensor) -> Result<Vec<Gray8Image>> {
        let (n, _, h, w) = after.dims4()?;
        let host = |tensor: Tensor| -> Result<Vec<f32>> {
            Ok(tensor.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.flatten_all()?.to_vec1()?)
        };
        let changes = host(length(&(after.to_device(before.device())? - before)?)?)?;
        let masks = host(mask.narrow(1, 0, 1)?)?;
        let kernel = kernel();
        let each = changes.chunks_exact(h * w).zip(masks.chunks_exact(h * w)).take(n);
        each.map(|(change, mask)| {
            let change = histogram_filter(change, (w, h), &kernel, 0.9, 1.0);
            let change = histogram_filter(&change, (w, h), &kernel, 0.25, 0.75);
            let values = change.iter().zip(mask).map(|(&change, &mask)| self.opacity(change, mask)).collect();
            Ok(Gray8Image::new(w, h, values)?)
        })
        .collect()
    }

    /// How much of the result is seen where the latents changed by `change` under a mask of `mask`.
    fn opacity(&self, change: f32, mask: f32) -> u8 {
        let (influence, scale) = (self.mask_influence as f32, (self.mask_blend_scale / 2.0) as f32);
        let scalar = 1.0 - mask.clamp(0.0, 1.0).powf(scale);
        let scalar = 0.5 * (1.0 - influence) + scalar * influence;
        let half = self.difference_threshold as f32 * (scalar / (1.00001 - scalar));
        let x = 1.0 / (1.0 + (change / half).powf(self.difference_contrast as f32));
        let smooth = x * x * x * (x * (6.0 * x - 15.0) + 10.0);
        (255.0 * (1.0 - smooth)) as u8
    }
}

/// The Euclidean length over the channels, `(n, 1, h, w)` in f64.
fn length(tensor: &Tensor) -> Result<Tensor> {
    let squares = tensor.to_dtype(DType::F64)?.sqr()?;
    Ok(squares.sum_keepdim(D::Minus(3))?.sqrt()?)
}

/// Pixels that the filter's window reaches to each side.
const RADIUS: usize = 2;
/// A side of the window.
const SIDE: usize = 2 * RADIUS + 1;

/// `get_gaussian_kernel(stddev_radius=1.5, max_radius=2)`: a Gaussian that is 0 one pixel beyond the window.
fn kernel() -> [[f64; SIDE]; SIDE] {
    let gaussian = |square: f64| (-square / (1.5 * 1.5)).exp();
    let zero = gaussian(((RADIUS + 1) * (RADIUS + 1)) as f64);
    let square = |i: usize| (i as f64 - RADIUS as f64).powi(2);
    std::array::from_fn(|y| {
        std::array::from_fn(|x| ((gaussian(square(y) + square(x)) - zero) * (1.0 / (1.0 - zero))).max(0.0))
    })
}

/// `weighted_histogram_filter` with a `min_width` of 1: at each place the mean of the window's values between two percentiles of
/// their weights.
fn histogram_filter(
    values: &[f32],
    (w, h): (usize, usize),
    kernel: &[[f64; SIDE]; SIDE],
    low: f64,
    high: f64,
) -> Vec<f32> {
    let mut near: Vec<(f32, f64)> = Vec::with_capacity(SIDE * SIDE);
    let mut out = Vec::with_capacity(values.len());
    for i in 0..values.len() {
        let (x, y) = (i % w, i / w);
        near.clear();
        for (row, j) in kernel.iter().zip(0..).filter_map(|(row, j)| Some((row, (y + j).checked_sub(RADIUS)?))) {
            for (weight, k) in row.iter().zip(0..).filter_map(|(v, k)| Some((v, (x + k).checked_sub(RADIUS)?))) {
                if let Some(&value) = values.get(j * w + k).filter(|_| j < h && k < w) {
                    near.push((value, *weight));
                }
            }
        }
        near.sort_by(|a, b| a.0.total_cmp(&b.0));
        out.push(mean_between(&near, low, high));
    }
    out
}

/// The mean of sorted values with weights between two parts of the sum of the weights.
fn mean_between(sorted: &[(f32, f64)], low: f64, high: f64) -> f32 {
    const MIN_WIDTH: f64 = 1.0;
    let total: f64 = sorted.iter().map(|(_, weight)| weight).sum();
    let (mut begin, mut end) = (total * low, total * high);
    if end - begin < MIN_WIDTH {
        let middle = (begin + end) / 2.0;
        (begin, end) = (middle - MIN_WIDTH / 2.0, middle + MIN_WIDTH / 2.0);
        if end > total {
            (begin, end) = (total - MIN_WIDTH, total);
        }
        if begin < 0.0 {
            (begin, end) = (0.0, MIN_WIDTH);
        }
    }
    let (mut first, mut sum, mut parts) = (0.0, 0.0, 0.0);
    for &(value, weight) in sorted {
        let last = first + weight;
        if begin < last && end > first {
            let part = end.min(last) - begin.max(first);
            (sum, parts) = (sum + f64::from(value) * part, parts + part);
        }
        first = last;
    }
    if parts == 0.0 { 0.0 } else { (sum / parts) as f32 }
}

#[cfg(test)]
mod tests {
    use kiln_testkit::Fixture;

    use super::*;

    /// Against a transcription of the extension's formulas (`tests/reference/{webui,rules}.py`).
    #[test]
    fn what_is_seen_is_what_changed() {
        let results = Fixture::open("inpaint/rules.safetensors");
        for (name, options) in [
            ("composite", SoftInpainting::new(&ImageOptions::default())),
            (
                "composite_options",
                SoftInpainting {
                    mask_influence: 0.6,
                    difference_threshold: 1.5,
                    difference_contrast: 4.0,
                    mask_blend_scale: 2.0,
                    ..SoftInpainting::new(&ImageOptions::default())
                },
            ),
            (
                "composite_area",
                SoftInpainting { difference_threshold: 1.0, ..SoftInpainting::new(&ImageOptions::default()) },
            ),
        ] {
            let [before, after] = ["before", "after"].map(|what| results.tensor(&format!("{name}.{what}")));
            let mask = results.tensor(&format!("{name}.kept")).broadcast_as(after.shape()).unwrap();
            let found = options.visible(&before, &after, &mask).unwrap().remove(0);
            let expected: Vec<u8> = results.tensor(&format!("{name}.seen")).flatten_all().unwrap().to_vec1().unwrap();
            let apart = found.data().iter().zip(&expected).map(|(a, b)| a.abs_diff(*b)).max();
            println!("{name}: {apart:?}");
            assert!(apart <= Some(1), "{name}: {found:?} {expected:?}");
            assert!(expected.iter().any(|&v| v > 200) && expected.iter().any(|&v| v < 50), "{name}");
        }
    }

    #[test]
    fn a_blend_has_the_length_of_what_it_mixes() {
        let tensor = |values: [f32; 4]| Tensor::from_slice(&values, (1, 4, 1, 1), &Device::Cpu).unwrap();
        let (kept, found) = (tensor([2.0, 0.0, 0.0, 0.0]), tensor([0.0, 2.0, 0.0, 0.0]));
        let options = SoftInpainting::new(&ImageOptions::default());
        let blend = |mask: f32, sigma: f64| {
            let mask = tensor([mask; 4]);
            options.blend(&kept, &found, &mask, sigma).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        let half = blend(0.5, 2.0); // 0.5^(2 * 0.5)
        assert!(half.iter().zip([2f32.sqrt(), 2f32.sqrt(), 0.0, 0.0]).all(|(a, b)| (a - b).abs() < 1e-4), "{half:?}");
        assert!((blend(1.0, 3.0)[1] - 2.0).abs() < 1e-4 && (blend(0.0, 3.0)[0] - 2.0).abs() < 1e-4);
        // More noise keeps more of the input.
        assert!(blend(0.5, 9.0)[0] > blend(0.5, 1.0)[0]);
    }
}
