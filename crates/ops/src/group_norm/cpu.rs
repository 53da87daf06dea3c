//! Group normalisation on the processor: one pass for the sums, one that writes the result.
//!
//! Rows of pixels are summed in blocks of a fixed size and the blocks in their order, so that neither the number of
//! threads nor the other images of a batch change a bit.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{GroupNorm, OP};
use crate::cpu::View;
use crate::error::Result;
use crate::output::write_cpu;

/// Pixels of a block of partial sums.
const BLOCK: usize = 256;

pub(super) fn forward(
    x: &Tensor,
    gamma: &Tensor,
    beta: &Tensor,
    config: GroupNorm,
    (b, c): (usize, usize),
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let (input, gamma_values, beta_values) = (View::new(x)?, View::new(gamma)?, View::new(beta)?);
    let pixels = input.len() / (b * c).max(1);
    write_cpu(OP, out, x.dims(), x.dtype(), &[x, gamma, beta], |y| {
        let image = (pixels * c).max(1);
        for (x, y) in input.chunks_exact(image).zip(y.chunks_exact_mut(image)) {
            let (scale, shift) = affine(x, &gamma_values, &beta_values, config, pixels);
            let rows = x.par_chunks(BLOCK * c).zip(y.par_chunks_mut(BLOCK * c));
            rows.for_each(|(x, y)| {
                for (x, y) in x.chunks_exact(c).zip(y.chunks_exact_mut(c)) {
                    for (((y, x), scale), shift) in y.iter_mut().zip(x).zip(&scale).zip(&shift) {
                        *y = x * scale + shift;
                    }
                    if config.silu {
                        y.iter_mut().for_each(|y| *y /= 1.0 + (-*y).exp());
                    }
                }
            });
        }
    })
}

/// The scale and shift of every channel of one image: normalisation, gamma and beta in one multiplication.
fn affine(x: &[f32], gamma: &[f32], beta: &[f32], config: GroupNorm, pixels: usize) -> (Vec<f32>, Vec<f32>) {
    let c = gamma.len();
    let width = c / config.num_groups;
    // Sums of x - x[0]: shifting by a value of the channel keeps the difference of squares from cancelling.
    let origin = &x[..c];
    let partial: Vec<Vec<(f32, f32)>> = x
        .par_chunks(BLOCK * c)
        .map(|block| {
            let mut sums = vec![(0f32, 0f32); c];
            for pixel in block.chunks_exact(c) {
                for (((sum, square), x), origin) in sums.iter_mut().zip(pixel).zip(origin) {
                    let d = x - origin;
                    *sum += d;
                    *square += d * d;
                }
            }
            sums
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
            for block in &partial {
                let (s, q) = (f64::from(block[channel].0), f64::from(block[channel].1));
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
