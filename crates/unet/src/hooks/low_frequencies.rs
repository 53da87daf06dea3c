//! The lowest frequencies of feature maps with another factor, without a Fourier transform.
//!
//! FreeU scales the 2x2 frequencies {-1, 0} of each channel. Their part of a map is a projection on the products of 1,
//! cosine and sine of one period along each axis, nine numbers a channel, from which the real part follows.

use std::f64::consts::TAU;

use candle_core::{DType, Device, Tensor};
use kiln_nn::{Result, TensorLike};

/// `x` `(b, h, w, c)` with its lowest frequencies times `factor`. Sums are in f32.
///
/// With `A = (1 + cos) / n` and `S = sin / n` of the distance of two pixels along an axis of `n`, the real part of the four
/// frequencies is `A_y A_x - S_y S_x`.
pub(crate) fn scale_low_frequencies<T: TensorLike>(x: &T, factor: f64) -> Result<T> {
    let [b, h, w, c] = x.size4()?;
    let map = x.to_dtype(DType::F32)?;
    let (rows, columns) = (waves(h)?, waves(w)?); // (3, h), (3, w)
    let constant = |matrix: &Tensor| map.new_constant(matrix);
    // Sums along both axes, (b, 9, c).
    let sums = map.reshape(&[b * h, w, c])?.premultiplied(&constant(&columns)?)?;
    let sums = sums.reshape(&[b, h, 3 * c])?.premultiplied(&constant(&rows)?)?;
    let mixed = sums.reshape(&[b, 9, c])?.premultiplied(&constant(&mixing((factor - 1.0) / (h * w) as f64)?)?)?;
    // And back.
    let across = mixed.reshape(&[b, 3, 3 * c])?.premultiplied(&constant(&rows.t()?.contiguous()?)?)?;
    let change = across.reshape(&[b * h, 3, c])?.premultiplied(&constant(&columns.t()?.contiguous()?)?)?;
    map.add(&change.reshape(&[b, h, w, c])?)?.to_dtype(x.dtype())
}

/// 1, cosine and sine of one period over `n` pixels, `(3, n)`. An axis of one pixel has the frequency 0 alone.
fn waves(n: usize) -> Result<Tensor> {
    let angle = |i: usize| TAU * i as f64 / n as f64;
    let amplitude = if n > 1 { 1.0 } else { 0.0 };
    let of = |wave: fn(f64) -> f64| (0..n).map(move |i| (amplitude * wave(angle(i))) as f32);
    let values: Vec<f32> = (0..n).map(|_| 1.0).chain(of(f64::cos)).chain(of(f64::sin)).collect();
    Ok(Tensor::from_vec(values, (3, n), &Device::Cpu)?)
}

/// What becomes of the nine sums, times `factor`, `(9, 9)`: themselves, less the product of both axes' sines of distances,
/// which exchanges cosine (1) and sine (2) along both.
fn mixing(factor: f64) -> Result<Tensor> {
    let place = |y: usize, x: usize| 3 * y + x;
    let mut values = [0f32; 81];
    let mut add = |to: usize, from: usize, value: f64| values[9 * to + from] += (value * factor) as f32;
    (0..9).for_each(|i| add(i, i, 1.0));
    // sin(a - b) = sin a cos b - cos a sin b: a sine takes the cosine's sum, and a cosine the sine's negative one.
    let exchanged = [(2, 1, 1.0), (1, 2, -1.0)];
    for (to_y, from_y, sign_y) in exchanged {
        for (to_x, from_x, sign_x) in exchanged {
            add(place(to_y, to_x), place(from_y, from_x), -sign_y * sign_x);
        }
    }
    Ok(Tensor::from_slice(&values, (9, 9), &Device::Cpu)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The four frequencies by their definition, in f64.
    fn expected(map: &[f32], (h, w): (usize, usize), factor: f64) -> Vec<f32> {
        let angle = |ky: usize, kx: usize, y: usize, x: usize| {
            -TAU * (ky as f64 * y as f64 / h as f64 + kx as f64 * x as f64 / w as f64)
        };
        let mut found: Vec<f64> = map.iter().map(|&value| f64::from(value)).collect();
        for (ky, kx) in (0..h.min(2)).flat_map(|ky| (0..w.min(2)).map(move |kx| (ky, kx))) {
            let (mut re, mut im) = (0.0, 0.0);
            for (i, &value) in map.iter().enumerate() {
                // The frequency is -k.
                let a = -angle(ky, kx, i / w, i % w);
                (re, im) = (re + f64::from(value) * a.cos(), im + f64::from(value) * a.sin());
            }
            for (i, value) in found.iter_mut().enumerate() {
                let a = angle(ky, kx, i / w, i % w);
                *value += (factor - 1.0) * (re * a.cos() - im * a.sin()) / (h * w) as f64;
            }
        }
        found.into_iter().map(|value| value as f32).collect()
    }

    #[test]
    fn four_frequencies_change() {
        for (h, w) in [(1, 1), (1, 4), (2, 2), (3, 5), (8, 1), (6, 8)] {
            let map: Vec<f32> = (0..h * w).map(|i| ((i * 37 + 11) % 23) as f32 / 11.0 - 1.0).collect();
            let x = Tensor::from_slice(&map, (1, h, w, 1), &Device::Cpu).unwrap();
            let x = Tensor::cat(&[&x, &(&x * -2.0).unwrap()], 3).unwrap(); // (1, h, w, 2)
            let found = scale_low_frequencies(&x, 0.2).unwrap();
            let expected = expected(&map, (h, w), 0.2);
            let found: Vec<f32> = found.flatten_all().unwrap().to_vec1().unwrap();
            for (pair, expected) in found.chunks(2).zip(expected) {
                assert!((pair[0] - expected).abs() < 1e-5 && (pair[1] + 2.0 * expected).abs() < 2e-5, "{h}x{w}");
            }
        }
    }
}
