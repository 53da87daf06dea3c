//! Group normalisation on the processor: one pass for the sums, one that writes the result.
//!
//! Rows of pixels are summed in blocks of a fixed size and the blocks in their order, so that neither the number of
//! threads nor the other images of a batch change a bit.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{GroupNorm, OP};
use crate::cpu::math::{for_every_isa, silu};
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

/// Pixels of a block of partial sums.
pub(super) const BLOCK: usize = 256;

pub(super) fn forward(
    x: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    config: GroupNorm,
    shape: (usize, usize),
    out: Option<&Tensor>,
) -> Result<Tensor> {
    dispatch!(OP, "x", x.dtype(), typed(x, gamma, beta, config, shape, out))
}

fn typed<T: Element>(
    x: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    config: GroupNorm,
    (b, c): (usize, usize),
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let input = View::<T>::new(x)?;
    let (gamma_values, beta_values) = (View::<f32>::new(gamma)?, View::<f32>::new(beta)?);
    let pixels = input.len() / (b * c).max(1);
    write::<T>(OP, out, x.dims(), &[x, gamma, beta], |y| {
        let image = (pixels * c).max(1);
        for (x, y) in input.chunks_exact(image).zip(y.chunks_exact_mut(image)) {
            let (scale, shift) = affine(x, &gamma_values, &beta_values, config, pixels);
            let rows = x.par_chunks(BLOCK * c).zip(y.par_chunks_mut(BLOCK * c));
            rows.for_each(|(x, y)| apply(x, &scale, &shift, config.silu, y));
        }
    })
}

for_every_isa! {
    /// Scales and shifts the channels of some pixels, and activates them.
    fn apply<T: Element>(x: &[T], scale: &[f32], shift: &[f32], activate: bool, y: &mut [T]) {
        let c = scale.len();
        for (x, y) in x.chunks_exact(c).zip(y.chunks_exact_mut(c)) {
            let channels = y.iter_mut().zip(x).zip(scale).zip(shift);
            if activate {
                channels.for_each(|(((y, x), scale), shift)| *y = T::from_f32(silu(x.to_f32() * scale + shift)));
            } else {
                channels.for_each(|(((y, x), scale), shift)| *y = T::from_f32(x.to_f32() * scale + shift));
            }
        }
    }
}

for_every_isa! {
    /// Adds the sums and the sums of squares of every channel over some pixels, each less the channel's `origin`.
    fn add_moments<T: Element>(x: &[T], origin: &[f32], sums: &mut [f32], squares: &mut [f32]) {
        for pixel in x.chunks_exact(origin.len()) {
            for (((sum, square), x), origin) in sums.iter_mut().zip(squares.iter_mut()).zip(pixel).zip(origin) {
                let d = x.to_f32() - origin;
                *sum += d;
                *square += d * d;
            }
        }
    }
}

/// The scale and shift of every channel of one image: normalisation, gamma and beta in one multiplication.
fn affine<T: Element>(x: &[T], gamma: &[f32], beta: &[f32], config: GroupNorm, pixels: usize) -> (Vec<f32>, Vec<f32>) {
    let c = gamma.len();
    let width = c / config.num_groups;
    // Sums of x - x[0]: shifting by a value of the channel keeps the difference of squares from cancelling.
    let origin: Vec<f32> = x[..c].iter().map(|x| x.to_f32()).collect();
    let partial: Vec<(Vec<f32>, Vec<f32>)> = x
        .par_chunks(BLOCK * c)
        .map(|block| {
            let (mut sums, mut squares) = (vec![0f32; c], vec![0f32; c]);
            add_moments(block, &origin, &mut sums, &mut squares);
            (sums, squares)
        })
        .collect();
    let count = (pixels * width) as f64;
    let (mut scale, mut shift) = (vec![0f32; c], vec![0f32; c]);
    for group in 0..config.num_groups {
        let channels = group * width..(group + 1) * width;
        let mut sum = 0f64;
        let mut square = 0f64;
        // A group's reference point is its first channel; moving a channel's sums there is exact enough in f64.
        let base = f64::from(origin[channels.start]);
        for channel in channels.clone() {
            let offset = f64::from(origin[channel]) - base;
            for (sums, squares) in &partial {
                let (s, q) = (f64::from(sums[channel]), f64::from(squares[channel]));
                sum += s;
                square += q + 2.0 * offset * s;
            }
            sum += offset * pixels as f64;
            square += offset * offset * pixels as f64;
        }
        let mean = sum / count;
        let variance = (square / count - mean * mean).max(0.0);
        let inverse = 1.0 / (variance + config.eps).sqrt();
        for channel in channels {
            let factor = f64::from(gamma[channel]) * inverse;
            scale[channel] = factor as f32;
            shift[channel] = (f64::from(beta[channel]) - (mean + base) * factor) as f32;
        }
    }
    (scale, shift)
}
