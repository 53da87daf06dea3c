//! Group normalization on the CPU: one pass for the sums, one that writes the result.
//!
//! Pixels are summed in blocks of a fixed size, and the blocks in order, so that the result depends neither on the
//! number of threads nor on the batch size. Small maps have few blocks, so threads share a block's channels too.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Call, GroupNorm, OP};
use crate::backend::{Cpu, Kernel};
use crate::cpu::math::{for_every_isa, silu};
use crate::cpu::{Element, View};
use crate::error::Result;
use crate::output::write;

/// Pixels of a block of partial sums.
pub(super) const BLOCK: usize = 256;
/// Channels of a block that a thread sums.
const CHANNELS: usize = 128;
/// Elements that a thread scales at a time: 32 KiB of bf16.
const ELEMENTS: usize = 16 << 10;

impl Kernel<Cpu> for Call<'_> {
    fn launch(&self, _cpu: &Cpu, out: Option<&Tensor>) -> Result<Option<Tensor>> {
        let Self { x, gamma, beta, config, shape } = *self;
        dispatch!(OP, "x", x.dtype(), typed(x, gamma, beta, config, shape, out)).map(Some)
    }
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
        input.par_chunks_exact(image).zip(y.par_chunks_exact_mut(image)).for_each(|(x, y)| {
            let mut moments = Moments::default();
            moments.add_pixels(x, c);
            let (scale, shift) = moments.scale_and_shift(&gamma_values, &beta_values, config, pixels);
            apply_all(x, &scale, &shift, config.silu, y);
        });
    })
}

/// Scales, shifts and activates all of `x`, `(.., c)`.
pub(super) fn apply_known(
    x: &Tensor,
    scale: &[f32],
    shift: &[f32],
    activate: bool,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    fn typed<T: Element>(
        x: &Tensor,
        scale: &[f32],
        shift: &[f32],
        activate: bool,
        out: Option<&Tensor>,
    ) -> Result<Tensor> {
        let input = View::<T>::new(x)?;
        write::<T>(OP, out, x.dims(), &[x], |y| apply_all(&input, scale, shift, activate, y))
    }
    dispatch!(OP, "x", x.dtype(), typed(x, scale, shift, activate, out))
}

fn apply_all<T: Element>(x: &[T], scale: &[f32], shift: &[f32], activate: bool, y: &mut [T]) {
    let c = scale.len().max(1);
    let block = (ELEMENTS / c).max(1) * c;
    x.par_chunks(block).zip(y.par_chunks_mut(block)).for_each(|(x, y)| apply(x, scale, shift, activate, y));
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
    /// Adds the sums and the sums of squares of the channels from `first` on over some pixels of `c` channels, each
    /// relative to the channel's `origin`.
    fn add_moments<T: Element>(
        x: &[T],
        c: usize,
        first: usize,
        origin: &[f32],
        sums: &mut [f32],
        squares: &mut [f32],
    ) {
        for pixel in x.chunks_exact(c) {
            let pixel = &pixel[first..first + origin.len()];
            for (((sum, square), x), origin) in sums.iter_mut().zip(squares.iter_mut()).zip(pixel).zip(origin) {
                let d = x.to_f32() - origin;
                *sum += d;
                *square += d * d;
            }
        }
    }
}

/// [`add_moments`] for all channels.
fn add_block<T: Element>(x: &[T], origin: &[f32], sums: &mut [f32], squares: &mut [f32]) {
    let parts = sums.par_chunks_mut(CHANNELS).zip(squares.par_chunks_mut(CHANNELS)).zip(origin.par_chunks(CHANNELS));
    parts.enumerate().for_each(|(part, ((sums, squares), channels))| {
        add_moments(x, origin.len(), part * CHANNELS, channels, sums, squares);
    });
}

/// Sums over an image's pixels, in blocks of [`BLOCK`] from its first pixel on, however many are added at a time.
#[derive(Default)]
pub(super) struct Moments {
    /// The first pixel's channels. Sums are those of `x - origin`: shifting by a value of the channel keeps the
    /// difference of squares from cancelling.
    origin: Vec<f32>,
    /// Sums and sums of squares of every channel, block by block.
    blocks: Vec<(Vec<f32>, Vec<f32>)>,
    /// Pixels that the last block is still missing.
    missing: usize,
}

impl Moments {
    /// Adds the next pixels, `x` `(1, .., c)`.
    pub(super) fn add(&mut self, x: &Tensor) -> Result<()> {
        fn typed<T: Element>(moments: &mut Moments, x: &Tensor) -> Result<()> {
            moments.add_pixels(&View::<T>::new(x)?, x.dims().last().copied().unwrap_or(0));
            Ok(())
        }
        dispatch!(OP, "x", x.dtype(), typed(self, x))
    }

    fn add_pixels<T: Element>(&mut self, x: &[T], c: usize) {
        if self.blocks.is_empty() {
            self.origin = x.iter().take(c).map(|x| x.to_f32()).collect();
        }
        let (first, rest) = x.split_at((self.missing * c).min(x.len()));
        if let Some((sums, squares)) = self.blocks.last_mut() {
            add_block(first, &self.origin, sums, squares);
        }
        let blocks = rest.par_chunks((BLOCK * c).max(1)).map(|block| {
            let (mut sums, mut squares) = (vec![0f32; c], vec![0f32; c]);
            add_block(block, &self.origin, &mut sums, &mut squares);
            (sums, squares)
        });
        self.blocks.extend(blocks.collect::<Vec<_>>());
        let (first, rest) = (first.len() / c.max(1), rest.len() / c.max(1));
        self.missing = self.missing - first + rest.next_multiple_of(BLOCK) - rest;
    }

    /// The scale and shift of every channel: normalization, `gamma` and `beta` `(c)` in one multiplication.
    pub(super) fn affine(
        &self,
        gamma: &Tensor,
        beta: &Tensor,
        config: GroupNorm,
        pixels: usize,
    ) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok(self.scale_and_shift(&View::<f32>::new(gamma)?, &View::<f32>::new(beta)?, config, pixels))
    }

    fn scale_and_shift(&self, gamma: &[f32], beta: &[f32], config: GroupNorm, pixels: usize) -> (Vec<f32>, Vec<f32>) {
        let Self { origin, blocks, .. } = self;
        let c = gamma.len();
        let width = c / config.num_groups;
        let count = (pixels * width) as f64;
        let (mut scale, mut shift) = (vec![0f32; c], vec![0f32; c]);
        for group in 0..config.num_groups {
            let channels = group * width..(group + 1) * width;
            let mut sum = 0f64;
            let mut square = 0f64;
            // The reference point of a group is its first channel. Shifting the sums of the other channels is accurate
            // enough in f64.
            let base = f64::from(origin[channels.start]);
            for channel in channels.clone() {
                let offset = f64::from(origin[channel]) - base;
                for (sums, squares) in blocks {
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
}
