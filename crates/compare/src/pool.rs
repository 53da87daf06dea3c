//! Pooling of feature maps: one number for each window of each channel.

use candle_core::{Device, Tensor};
use rayon::prelude::*;

/// The number that stands for a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reduce {
    /// The largest value.
    Max,
    /// The mean of the values inside of the map: padding does not count.
    Mean,
}

/// The geometry of windows, which are square.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pool {
    pub(crate) reduce: Reduce,
    /// The side of a window.
    pub(crate) side: usize,
    /// The distance between neighboring windows.
    pub(crate) stride: usize,
    /// Rows and columns outside of the map, on each side, less than `side`. They have no values.
    pub(crate) padding: usize,
}

impl Pool {
    /// The largest values of windows inside of the map.
    pub(crate) const fn max(side: usize, stride: usize) -> Self {
        Self { reduce: Reduce::Max, side, stride, padding: 0 }
    }

    /// Windows of 3 by 3 around each pixel.
    pub(crate) const fn around(reduce: Reduce) -> Self {
        Self { reduce, side: 3, stride: 1, padding: 1 }
    }

    /// A map `(b, h, w, c)` in f32 to `(b, h_out, w_out, c)`. `h` and `w` have room for a window.
    pub(crate) fn forward(self, x: &Tensor) -> kiln_nn::Result<Tensor> {
        let (b, h, w, c) = x.dims4()?;
        let windows = |size: usize| (size + 2 * self.padding).saturating_sub(self.side) / self.stride + 1;
        let (h_out, w_out) = (windows(h), windows(w));
        let values: Vec<f32> = x.flatten_all()?.to_vec1()?;
        let mut pooled = vec![0.0; b * h_out * w_out * c];
        pooled.par_chunks_mut((w_out * c).max(1)).enumerate().for_each(|(row, line)| {
            let map = &values[row / h_out * h * w * c..][..h * w * c];
            for (column, pixel) in line.chunks_mut(c).enumerate() {
                self.window(map, [h, w], [row % h_out, column], pixel);
            }
        });
        Ok(Tensor::from_vec(pooled, (b, h_out, w_out, c), &Device::Cpu)?)
    }

    /// The channels of one window, by its row and column.
    fn window(self, map: &[f32], [h, w]: [usize; 2], [row, column]: [usize; 2], pixel: &mut [f32]) {
        let inside = |place: usize, size: usize| {
            let first = place * self.stride;
            first.saturating_sub(self.padding)..(first + self.side).saturating_sub(self.padding).min(size)
        };
        let (rows, columns) = (inside(row, h), inside(column, w));
        let (count, channels) = (rows.len() * columns.len(), pixel.len());
        pixel.fill(if self.reduce == Reduce::Max { f32::NEG_INFINITY } else { 0.0 });
        for y in rows {
            for x in columns.clone() {
                let values = pixel.iter_mut().zip(&map[(y * w + x) * channels..]);
                match self.reduce {
                    Reduce::Max => values.for_each(|(most, &value)| *most = most.max(value)),
                    Reduce::Mean => values.for_each(|(sum, &value)| *sum += value),
                }
            }
        }
        if self.reduce == Reduce::Mean {
            pixel.iter_mut().for_each(|sum| *sum /= count as f32);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pool: Pool, [h, w]: [usize; 2]) -> Vec<f32> {
        let values: Vec<f32> = (0..2 * h * w).map(|i| if i % 2 == 0 { i as f32 / 2.0 } else { -1.0 }).collect();
        let map = Tensor::from_vec(values, (1, h, w, 2), &Device::Cpu).unwrap();
        let pooled: Vec<f32> = pool.forward(&map).unwrap().flatten_all().unwrap().to_vec1().unwrap();
        assert!(pooled.iter().skip(1).step_by(2).all(|&value| value == -1.0), "channels are apart");
        pooled.into_iter().step_by(2).collect()
    }

    #[test]
    fn windows_have_one_number() {
        assert_eq!(pooled(Pool::max(2, 2), [2, 4]), [5.0, 7.0]);
        assert_eq!(pooled(Pool::max(3, 2), [3, 6]), [14.0, 16.0], "columns without a whole window are left out");
        assert_eq!(pooled(Pool::around(Reduce::Max), [2, 3]), [4.0, 5.0, 5.0, 4.0, 5.0, 5.0]);
        // Padding does not count: four of nine values in a corner, six at an edge.
        assert_eq!(pooled(Pool::around(Reduce::Mean), [2, 3]), [2.0, 2.5, 3.0, 2.0, 2.5, 3.0]);
    }
}
