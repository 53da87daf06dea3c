//! Products of 8-bit weights and 8-bit activations (W8A8) with a scale for each row: linear layers and convolutions on GPUs.
//!
//! A weight `w` of output channel `o` is `scale[o] q`, with `q` the number of a byte ([`ByteNumber`]) and `scale[o]` the largest
//! magnitude of its row over the largest such number: 448 for e4m3, 127 for integers. An activation is rounded at each call,
//! with a scale of the same kind: one for each row of a linear layer and each pixel of a 1x1 convolution, else one for each
//! image. So an image has the same bits in every batch.
//!
//! `y[o] = scale scale[o] (sum q_x q_w) + bias[o] + ..`. The result is rounded once.
//!
//! | Numbers | GPU | Kernel |
//! | --- | --- | --- |
//! | e4m3 | compute capability 9.0 | cuBLASLt for linear layers if it has an algorithm, else `hopper_product.cuh` |
//! | e4m3 | 8.9, 10.0 and newer | `tile.cuh` |
//! | integers | 7.5 and newer | `tile.cuh` |
//!
//! Sums of integers are exact. Sums of e4m3 numbers are the tensor cores', which keep about 14 bits; f32 takes over every 512
//! products. Elsewhere ([`crate::device::supports_fp8`]) the reference runs, which is for tests.

mod activated;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod fused;
mod number;
mod operations;
pub(crate) mod reference;
#[cfg(feature = "cuda")]
pub(crate) mod rounding;
pub(crate) mod source;
#[cfg(test)]
mod tests;
#[cfg(feature = "cuda")]
mod tile;

use candle_core::Tensor;
use rayon::prelude::*;

use crate::packing::Packing;
use crate::workspace::Workspace;
pub use activated::{Activated, Hidden};
pub use fused::{activation_linear, geglu_linear, normed_conv2d, normed_linear};
pub use number::ByteNumber;
use number::magnitude;
pub use operations::{ActivationLinearOp, GegluLinearOp, NormedConv2dOp, NormedLinearOp};

/// Rows of weights and activations start at multiples of this many bytes, which the copies to shared memory need.
const ALIGNMENT: usize = 16;
/// Parts of an image whose largest magnitudes are found apart.
const PARTS: usize = 64;
/// The longest row: 127 times 127 as often is less than 2^31.
const LONGEST: usize = 130_000;

/// The memory of a weight in bytes: `n` rows of `taps` times `channels` bytes, taps before channels, and `n` scales in f32, which
/// may be elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct W8Matrix {
    number: ByteNumber,
    n: usize,
    taps: usize,
    channels: usize,
}

/// The numbers and the scales of a weight in bytes.
#[derive(Debug, Clone)]
pub(crate) struct W8Weight {
    pub(crate) number: ByteNumber,
    /// The memory of one f32 for each output channel, in a tensor of any type.
    pub(crate) scales: Tensor,
}

impl W8Matrix {
    /// Of a parameter of the shape `stored`. `None` if it is no weight, has rows of more than 130,000 elements, or channels that
    /// are no multiples of 16.
    pub fn of(number: ByteNumber, packing: Packing, stored: &[usize]) -> Option<Self> {
        let (n, taps, channels) = packing.matrix(stored)?;
        let is_aligned = n.is_multiple_of(ALIGNMENT) && channels.is_multiple_of(ALIGNMENT);
        let fits = is_aligned && n > 0 && (1..=LONGEST).contains(&(taps * channels));
        fits.then_some(Self { number, n, taps, channels })
    }

    /// Whether products of such a weight are not slower than in 16 bits: all convolutions, and the large ones of linear layers.
    /// Others take longer with the rounding of their input. Measured in e4m3 on an H200 at the shapes of SD 1.5 and SDXL. `together`
    /// matrices of this shape are one product.
    pub fn pays(&self, together: usize) -> bool {
        const LARGE: usize = 1 << 20;
        self.taps > 1 || together * self.n * self.channels >= LARGE
    }

    /// The numbers of its bytes.
    pub fn number(&self) -> ByteNumber {
        self.number
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
        let (scale, inverse) = self.number.scale(magnitude(&values));
        if self.taps == 1 {
            bytes.iter_mut().zip(&values).for_each(|(byte, value)| *byte = self.number.byte(value * inverse));
            return scale;
        }
        // Stored channels come before taps.
        for (tap, bytes) in bytes.chunks_exact_mut(self.channels).enumerate() {
            let of_tap = values[tap..].iter().step_by(self.taps);
            bytes.iter_mut().zip(of_tap).for_each(|(byte, value)| *byte = self.number.byte(value * inverse));
        }
        scale
    }
}

/// Memory of [`crate::conv2d`] and [`crate::linear`] besides operands and result for a weight in bytes: the rounded input of
/// `images` times `pixels` times `channels`, and its scales, one for each pixel where it has its own.
pub fn w8a8_workspace([images, pixels, channels]: [usize; 3], is_by_pixel: bool) -> Workspace {
    let scales = if is_by_pixel { images * pixels } else { images * (1 + PARTS) };
    Workspace::call(images * pixels * channels + scales * size_of::<f32>())
}

/// Rounds `values`, rows that have `channels` elements, or images that have that many, each with its own scale. Returns what
/// the rounded values stand for.
fn rounded(number: ByteNumber, values: &[f32], channels: usize) -> Vec<f32> {
    let parts = values.par_chunks(channels.max(1));
    parts.flat_map(|values| number.round_by(values, magnitude(values))).collect()
}
