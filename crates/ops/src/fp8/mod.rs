//! Products in 8-bit floats: linear layers and convolutions whose weights are stored as e4m3 (`F8_E4M3`, arXiv 2209.05433).
//!
//! A weight `w` of output channel `o` is `scale[o] q`, with `q` in e4m3 and `scale[o]` the largest magnitude of its row
//! over 448, the largest e4m3 number. An activation is rounded at each call, with a scale of the same kind: one for each
//! row of a linear layer and each pixel of a 1x1 convolution, else one for each image. So an image has the same bits in
//! every batch.
//!
//! `y[o] = scale scale[o] (sum q_x q_w) + bias[o] + ..`. Linear layers run in cuBLASLt where it has an algorithm, else and for
//! convolutions the kernel of `product.cuh` runs. Sums are the tensor cores', which keep about 14 bits; in the kernel f32 takes over
//! every 512 products. The result is rounded once.
//!
//! GPUs of compute capability 9.0 have kernels ([`crate::device::supports_fp8`]). Elsewhere the reference runs, which is for tests.

#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod fused;
mod operations;
pub(crate) mod reference;
pub(crate) mod source;
#[cfg(test)]
mod tests;
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "GPUs only"))]
mod tiling;

use candle_core::Tensor;
use rayon::prelude::*;

use crate::matrix::{f8_e4m3, to_f8_e4m3};
use crate::packing::Packing;
use crate::workspace::Workspace;
pub use fused::{geglu_linear, normed_conv2d, normed_linear};
pub use operations::{GegluLinearOp, NormedConv2dOp, NormedLinearOp};

/// The largest e4m3 number.
const MOST: f32 = 448.0;
/// The least largest magnitude that is scaled up to [`MOST`]: the factor stays finite. Smaller values are rounded to 0.
const LEAST: f32 = 1e-30;
/// Rows of weights and activations start at multiples of this many bytes, which the copies to shared memory need.
const ALIGNMENT: usize = 16;
/// Parts of an image whose largest magnitudes are found apart.
const PARTS: usize = 64;

/// The memory of a weight in e4m3: `n` rows of `taps` times `channels` bytes, taps before channels, and `n` scales in f32, which
/// may be elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fp8Matrix {
    n: usize,
    taps: usize,
    channels: usize,
}

/// The scales of a weight in e4m3.
#[derive(Debug, Clone)]
pub(crate) struct Fp8Weight {
    /// The memory of one f32 for each output channel, in a tensor of any type.
    pub(crate) scales: Tensor,
}

impl Fp8Matrix {
    /// Of a parameter of the shape `stored`. `None` where it is no weight, or where its channels are no multiples of 16.
    pub fn of(packing: Packing, stored: &[usize]) -> Option<Self> {
        let (n, taps, channels) = packing.matrix(stored)?;
        let fits = n.is_multiple_of(ALIGNMENT) && channels.is_multiple_of(ALIGNMENT) && n * taps * channels > 0;
        fits.then_some(Self { n, taps, channels })
    }

    /// Whether products of such a weight are not slower than in 16 bits: all convolutions, and the large ones of linear layers.
    /// Others take longer with the rounding of their input. Measured on an H200 at the shapes of SD 1.5 and SDXL. `together`
    /// matrices of this shape are one product.
    pub fn pays(&self, together: usize) -> bool {
        const LARGE: usize = 1 << 20;
        self.taps > 1 || together * self.n * self.channels >= LARGE
    }

    /// Bytes of a row.
    pub fn row_bytes(&self) -> usize {
        self.taps * self.channels
    }

    /// The number of rows, and of scales.
    pub fn rows(&self) -> usize {
        self.n
    }

    /// Bytes of all rows.
    pub fn bytes(&self) -> usize {
        self.n * self.row_bytes()
    }

    /// Rounds row `row` into `bytes`, and returns its scale. `read(start, out)` writes elements of the stored parameter, from
    /// index `start` of its row-major order, into `out`.
    pub fn row(&self, row: usize, read: impl Fn(usize, &mut [f32]), bytes: &mut [u8]) -> f32 {
        let mut values = vec![0f32; self.row_bytes()];
        read(row * self.row_bytes(), &mut values);
        let (scale, inverse) = scale_of(values.iter().fold(0f32, |most, value| most.max(value.abs())));
        if self.taps == 1 {
            bytes.iter_mut().zip(&values).for_each(|(byte, value)| *byte = to_f8_e4m3(value * inverse));
            return scale;
        }
        // Stored channels come before taps.
        for (tap, bytes) in bytes.chunks_exact_mut(self.channels).enumerate() {
            let of_tap = values[tap..].iter().step_by(self.taps);
            bytes.iter_mut().zip(of_tap).for_each(|(byte, value)| *byte = to_f8_e4m3(value * inverse));
        }
        scale
    }
}

/// The scale of values with this largest magnitude, and its inverse.
fn scale_of(most: f32) -> (f32, f32) {
    if most >= LEAST { (most / MOST, MOST / most) } else { (0.0, 0.0) }
}

/// Memory of [`crate::conv2d`] and [`crate::linear`] besides operands and result for a weight in e4m3: the rounded input of
/// `images` times `pixels` times `channels`, and its scales, one for each pixel where it has its own.
pub fn fp8_workspace([images, pixels, channels]: [usize; 3], is_by_pixel: bool) -> Workspace {
    let scales = if is_by_pixel { images * pixels } else { images * (1 + PARTS) };
    Workspace::call(images * pixels * channels + scales * size_of::<f32>())
}

/// Rounds `values`, rows that have `channels` elements, or images that have that many, each with its own scale. Returns what
/// the rounded values stand for.
fn rounded(values: &[f32], channels: usize) -> Vec<f32> {
    let parts = values.par_chunks(channels.max(1));
    parts.flat_map(|values| round_by(values, values.iter().fold(0f32, |most, value| most.max(value.abs())))).collect()
}

/// Rounds values of at most the magnitude `most`. Returns what the rounded values stand for.
fn round_by(values: &[f32], most: f32) -> Vec<f32> {
    let (scale, inverse) = scale_of(most);
    values.iter().map(|value| f8_e4m3(to_f8_e4m3(value * inverse)) * scale).collect()
}
