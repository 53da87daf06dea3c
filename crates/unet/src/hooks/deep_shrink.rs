//! Deep shrink (kohya-ss's high-resolution fix): in the first steps the deep part of the network works on a smaller map, so that
//! it composes an image of the size that it was trained with. As ComfyUI's `PatchModelAddDownscale`, after the skip connection,
//! bicubic.

use candle_core::{DType, Device, Tensor};
use kiln_nn::{Result, TensorLike};

use super::{DownHook, SkipHook};

/// A map that shrinks on the way down, and grows again before the skip connection of that place.
#[derive(Debug, Clone)]
pub struct DeepShrink<T = Tensor> {
    /// The step on the way down after which the map shrinks: 0 is the first convolution, each layer and each downsampling is one
    /// more.
    pub step: usize,
    /// The weights of rows and of columns, `(h', h)` and `(w', w)` in f32.
    pub down: [T; 2],
    /// The matrices of the way up, `(h, h')` and `(w, w')`.
    pub up: [T; 2],
}

impl DeepShrink {
    /// After `step`, where the map is `(h, w)`, by `factor`.
    ///
    /// # Errors
    /// Errors of candle where the device has no memory.
    pub fn new(step: usize, (h, w): (usize, usize), factor: f64, device: &Device) -> candle_core::Result<Self> {
        // Python's rounding.
        let smaller = |n: usize| ((n as f64 * (1.0 / factor)).round_ties_even() as usize).max(1);
        let of = |to: usize, from: usize| bicubic(to, from)?.to_device(device);
        let (rows, columns) = (smaller(h), smaller(w));
        Ok(Self { step, down: [of(rows, h)?, of(columns, w)?], up: [of(h, rows)?, of(w, columns)?] })
    }
}

impl<T: TensorLike> DownHook<T> for DeepShrink<T> {
    fn after(&self, step: usize, x: T) -> Result<T> {
        if step == self.step { resized(&x, &self.down) } else { Ok(x) }
    }
}

impl<T: TensorLike> SkipHook<T> for DeepShrink<T> {
    fn join(&self, _block: usize, _layer: usize, x: T, skip: T) -> Result<(T, T)> {
        let ([_, h, w, _], [_, height, width, _]) = (x.size4()?, skip.size4()?);
        let x = if (h, w) == (height, width) { x } else { resized(&x, &self.up)? };
        Ok((x, skip))
    }
}

/// `x` `(b, h, w, c)` to `(b, h', w', c)` by weights of rows `(h', h)` and of columns `(w', w)`. Sums are in f32.
fn resized<T: TensorLike>(x: &T, [rows, columns]: &[T; 2]) -> Result<T> {
    let ([b, h, w, c], [height, _], [width, _]) = (x.size4()?, rows.size2()?, columns.size2()?);
    let map = x.to_dtype(DType::F32)?.reshape(&[b * h, w, c])?.premultiplied(columns)?;
    let map = map.reshape(&[b, h, width * c])?.premultiplied(rows)?;
    map.reshape(&[b, height, width, c])?.to_dtype(x.dtype())
}

/// The weights of `from` pixels in each of `to`, `(to, from)`: PyTorch's `interpolate` with the mode bicubic, without `antialias` and
/// `align_corners`.
fn bicubic(to: usize, from: usize) -> candle_core::Result<Tensor> {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    let mut weights = vec![0f32; to * from];
    for (i, row) in weights.chunks_mut(from).enumerate() {
        let source = (i as f64 + 0.5) * from as f64 / to as f64 - 0.5;
        let part = source - source.floor();
        for (tap, weight) in [far(part + 1.0), near(part), near(1.0 - part), far(2.0 - part)].into_iter().enumerate() {
            let pixel = (source.floor() as isize + tap as isize - 1).clamp(0, from as isize - 1);
            row[pixel as usize] += weight as f32;
        }
    }
    Tensor::from_vec(weights, (to, from), &Device::Cpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.flatten_all().unwrap().to_vec1().unwrap()
    }

    /// `interpolate(torch.eye(n)[:, None, None], size=(1, m), mode="bicubic")` of PyTorch.
    #[test]
    fn weights_are_pytorchs() {
        assert_eq!(values(&bicubic(2, 4).unwrap()), [0.5, 0.59375, -0.09375, 0.0, 0.0, -0.09375, 0.59375, 0.5]);
        let expected =
            [1.096, -0.096, 0.0, 0.612, 0.46, -0.072, 0.0, 1.0, 0.0, -0.072, 0.46, 0.612, 0.0, -0.096, 1.096];
        let found = values(&bicubic(5, 3).unwrap());
        assert!(found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6), "{found:?}");
    }

    #[test]
    fn a_map_shrinks_and_grows_at_its_step() {
        let shrink = DeepShrink::new(2, (4, 6), 2.0, &Device::Cpu).unwrap();
        let x = Tensor::ones((1, 4, 6, 3), DType::F32, &Device::Cpu).unwrap();
        assert_eq!(DownHook::after(&shrink, 1, x.clone()).unwrap().dims(), [1, 4, 6, 3]);
        let small = DownHook::after(&shrink, 2, x.clone()).unwrap();
        assert_eq!(small.dims(), [1, 2, 3, 3]);
        let (grown, _) = SkipHook::join(&shrink, 0, 0, small, x.clone()).unwrap();
        let difference: Vec<f32> = values(&(grown - x).unwrap());
        assert!(difference.iter().all(|difference| difference.abs() < 1e-6));
    }
}
