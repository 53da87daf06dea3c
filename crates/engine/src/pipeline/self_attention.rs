//! Self-attention guidance (Hong et al., arXiv 2210.00939), as in diffusers' `StableDiffusionSAGPipeline`: the network's second
//! input, in which the parts are blurred that it attends to.

use candle_core::{DType, Device, Tensor};
use kiln_request::NetworkOptions;

use crate::error::Result;

/// Taps of the blur.
const TAPS: usize = 9;

/// The network's input `(n, c, h, w)` with the places of its clean images blurred that get much attention.
///
/// `input` is `alpha` times the clean image plus noise, and `clean` the clean image that the network predicts, both `(n, c, h,
/// w)` in f32. `map` `(n, rows * columns)` in f32 is the attention that each token gets.
pub(crate) fn degraded(
    input: &Tensor,
    clean: &Tensor,
    (map, (rows, columns)): (&Tensor, (usize, usize)),
    alpha: f64,
    options: &NetworkOptions,
) -> Result<Tensor> {
    let ((n, c, h, w), device) = (input.dims4()?, input.device());
    let blurred = blur(clean, options.sag_sigma)?;
    let masked = map.gt(options.sag_threshold)?.to_dtype(DType::F32)?.reshape((n, 1, rows, columns))?;
    let nearest = |to: usize, from: usize| -> Result<Tensor> {
        let from = (0..to).map(|i| (i * from / to) as u32).collect::<Vec<_>>();
        Ok(Tensor::from_vec(from, to, &Device::Cpu)?.to_device(device)?)
    };
    let masked = masked.index_select(&nearest(h, rows)?, 2)?.index_select(&nearest(w, columns)?, 3)?;
    let change = (blurred - clean)?.mul(&masked.broadcast_as((n, c, h, w))?.contiguous()?)?;
    // The noise stays, so that only the image's part changes.
    Ok((input + (change * alpha)?)?)
}

/// `x` `(n, c, h, w)` blurred by a normal distribution over nine pixels in both directions, with edges that reflect.
fn blur(x: &Tensor, sigma: f64) -> Result<Tensor> {
    let (n, c, h, w) = x.dims4()?;
    let matrix = |size: usize| -> Result<Tensor> {
        Ok(Tensor::from_vec(blur_weights(size, sigma), (size, size), &Device::Cpu)?.to_device(x.device())?)
    };
    let maps = x.reshape((n * c, h, w))?;
    let across = maps.matmul(&matrix(w)?.t()?.contiguous()?.broadcast_as((n * c, w, w))?.contiguous()?)?;
    let down = matrix(h)?.broadcast_as((n * c, h, h))?.contiguous()?.matmul(&across)?;
    Ok(down.reshape((n, c, h, w))?)
}

/// The weights of `size` pixels in each of them, by rows.
fn blur_weights(size: usize, sigma: f64) -> Vec<f32> {
    let half = (TAPS / 2) as isize;
    let weight = |tap: isize| (-0.5 * (tap as f64 / sigma).powi(2)).exp();
    let sum: f64 = (-half..=half).map(weight).sum();
    let last = size as isize - 1;
    // Edges reflect without repeating their pixel. A map of few pixels reflects more than once.
    let inside = |mut pixel: isize| {
        while last > 0 && !(0..=last).contains(&pixel) {
            pixel = if pixel < 0 { -pixel } else { 2 * last - pixel };
        }
        pixel.clamp(0, last) as usize
    };
    let mut weights = vec![0f32; size * size];
    for (i, row) in weights.chunks_mut(size).enumerate() {
        for tap in -half..=half {
            row[inside(i as isize + tap)] += (weight(tap) / sum) as f32;
        }
    }
    weights
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_gets_attention_is_blurred() {
        let values: Vec<f32> = (0..64).map(|i| ((i * 7) % 13) as f32).collect();
        let clean = Tensor::from_vec(values.clone(), (1, 1, 8, 8), &Device::Cpu).unwrap();
        let map = Tensor::new(&[[0.5f32, 1.5, 1.0, 0.0]], &Device::Cpu).unwrap();
        let options = NetworkOptions { sag_scale: 1.0, ..NetworkOptions::default() };
        let found = degraded(&clean, &clean, (&map, (2, 2)), 1.0, &options).unwrap();
        let found: Vec<f32> = found.flatten_all().unwrap().to_vec1().unwrap();
        for (i, (found, value)) in found.into_iter().zip(values).enumerate() {
            let is_masked = i / 8 < 4 && i % 8 >= 4;
            assert_eq!(found != value, is_masked, "{i}");
        }
        let even = Tensor::ones((1, 2, 8, 6), DType::F32, &Device::Cpu).unwrap();
        let blurred: Vec<f32> = blur(&even, 1.0).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert!(blurred.iter().all(|value| (value - 1.0).abs() < 1e-6));
    }

    /// `F.pad(.., mode="reflect")`, then the kernel.
    #[test]
    fn edges_reflect() {
        let weights = blur_weights(8, 1.0);
        let weight = |tap: f64| (-0.5 * tap * tap).exp() as f32;
        let sum: f32 = (-4..=4).map(|tap| weight(f64::from(tap))).sum();
        // Pixel 0 sees each of the next four from both sides.
        for (pixel, found) in weights[..8].iter().enumerate() {
            let expected = if pixel > 4 { 0.0 } else { weight(pixel as f64) * if pixel > 0 { 2.0 } else { 1.0 } / sum };
            assert!((found - expected).abs() < 1e-6, "{pixel}");
        }
    }
}
