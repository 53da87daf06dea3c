//! Products in 8-bit integers: linear layers and convolutions whose weights are stored as signed bytes.
//!
//! A weight `w` of output channel `o` is `scale[o] q`, with `q` in -127..=127 and `scale[o]` the largest magnitude of its
//! row over 127. An activation `x` is `scale (q - zero)`, with `q` and `zero` in 0..=255, where `0` is exact, so that
//! padding is too. The range of the activations, from which `scale` and `zero` follow, is measured at each call
//! ([`Int8Input::range`] is `None`): for each row of a linear layer and each pixel of a 1x1 convolution, else for each
//! image. Or it was measured before and is fixed; values beyond it are clamped. Both ways an image has the same bits in
//! every batch.
//!
//! `y[o] = scale scale[o] (sum q_x q_w - zero sum q_w) + bias[o] + ..`: the sums are exact in 32 bits, so all kernels
//! and numbers of threads have the same bits. The scaled sums are f32, and the result is rounded once.
//!
//! With a balance `f` (Xiao et al., SmoothQuant, arXiv 2211.10438) the product is that of `x[c] f[c]` and `w[c] / f[c]`,
//! so that input channels with large activations do not take the range of the others.

mod quantize;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use candle_core::{Device, Tensor};
use rayon::prelude::*;

use crate::cpu::product::PANEL;
use crate::cpu::product::bytes::{panel_len, place};
use crate::error::{Error, Result};
use crate::packing::Packing;
use crate::workspace::Workspace;
pub(crate) use quantize::{Quantizer, largest_range, quantize};
use quantize::{largest_magnitude, to_signed_bytes};

/// The largest magnitude of a quantized weight.
const MOST: f32 = 127.0;
/// The largest inner dimension: 255 times 127 as often is less than 2^31.
const LONGEST: usize = 66_000;
/// Bytes of the scales and of the sums of a panel's columns, which follow its elements.
const TAIL: usize = 2 * PANEL * size_of::<f32>();

/// How the activations of a layer become bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Int8Input {
    /// The least and the largest value, balanced; `None` where each call measures them.
    pub range: Option<[f32; 2]>,
    /// The factor of each input channel; `None` for 1.
    pub balance: Option<Arc<[f32]>>,
}

/// The memory of a weight in 8 bits: panels of 32 output channels, each with its elements, its scales (f32) and the sums
/// of its elements (i32).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Int8Matrix {
    n: usize,
    taps: usize,
    channels: usize,
}

impl Int8Matrix {
    /// Of a parameter of the shape `stored`. `None` where it is no weight, or has sums of more than 66,000 products.
    pub fn of(packing: Packing, stored: &[usize]) -> Option<Self> {
        let (n, taps, channels) = packing.matrix(stored)?;
        (taps * channels <= LONGEST).then_some(Self { n, taps, channels })
    }

    /// Bytes of a panel.
    pub fn panel_bytes(&self) -> usize {
        panel_len(self.k()) + TAIL
    }

    /// The number of panels.
    pub fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Bytes of all panels.
    pub fn bytes(&self) -> usize {
        self.panels() * self.panel_bytes()
    }

    pub(crate) fn k(&self) -> usize {
        self.taps * self.channels
    }

    /// The bytes of panel `panel`. `read(start, out)` writes elements of the stored parameter, from index `start` of its
    /// row-major order, into `out`. A balance has as many factors as there are input channels.
    pub fn panel(&self, panel: usize, balance: Option<&[f32]>, read: impl Fn(usize, &mut [f32])) -> Vec<u8> {
        let (k, length) = (self.k(), panel_len(self.k()));
        let mut bytes = vec![0; self.panel_bytes()];
        let (elements, tail) = bytes.split_at_mut(length);
        let (mut row, mut quantized) = (vec![0f32; k], vec![0i8; k]);
        for column in 0..PANEL.min(self.n - panel * PANEL) {
            read((panel * PANEL + column) * k, &mut row);
            if let Some(balance) = balance {
                row.chunks_exact_mut(self.taps).zip(balance).for_each(|(taps, factor)| {
                    taps.iter_mut().for_each(|value| *value /= factor);
                });
            }
            let mut largest = 0.0;
            largest_magnitude(&row, &mut largest);
            let scale = if largest > 0.0 && largest.is_finite() { largest / MOST } else { 1.0 };
            to_signed_bytes(&row, scale, &mut quantized);
            // Stored channels come before taps, in panels taps before channels.
            for (channel, taps) in quantized.chunks_exact(self.taps.max(1)).enumerate() {
                for (tap, value) in taps.iter().enumerate() {
                    elements[place(tap * self.channels + channel, column)] = value.cast_unsigned();
                }
            }
            let sum: i32 = quantized.iter().map(|value| i32::from(*value)).sum();
            let at = column * size_of::<f32>();
            tail[at..at + 4].copy_from_slice(&scale.to_le_bytes());
            tail[TAIL / 2 + at..TAIL / 2 + at + 4].copy_from_slice(&sum.to_le_bytes());
        }
        bytes
    }

    /// All panels of a parameter with these elements, in its stored order, as a flat tensor on the CPU for [`crate::Weight::int8`]. Its
    /// type is f32, which means nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] if there is another number of elements.
    pub fn memory(&self, elements: &[f32], balance: Option<&[f32]>) -> Result<Tensor> {
        if elements.len() != self.n * self.k() {
            let expected = format!("{} elements", self.n * self.k());
            return Err(Error::Shape { op: "weight", operand: "elements", expected, found: vec![elements.len()] });
        }
        let read = |start: usize, out: &mut [f32]| out.copy_from_slice(&elements[start..start + out.len()]);
        let panels = (0..self.panels()).into_par_iter().flat_map_iter(|panel| {
            let bytes = self.panel(panel, balance, read);
            bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<f32>>()
        });
        let words: Vec<f32> = panels.collect();
        let count = words.len();
        Ok(Tensor::from_vec(words, count, &Device::Cpu)?)
    }

    /// The scales and the sums of all columns, of whole panels, from the memory of all panels.
    pub(crate) fn columns(&self, memory: &[u8]) -> (Vec<f32>, Vec<i32>) {
        let (mut scales, mut sums) = (Vec::new(), Vec::new());
        for panel in memory.chunks_exact(self.panel_bytes()) {
            let (of_scales, of_sums) = panel[panel_len(self.k())..].as_chunks::<4>().0.split_at(PANEL);
            scales.extend(of_scales.iter().map(|bytes| f32::from_le_bytes(*bytes)));
            sums.extend(of_sums.iter().map(|bytes| i32::from_le_bytes(*bytes)));
        }
        (scales, sums)
    }
}

/// Memory of [`crate::conv2d`] and [`crate::linear`] besides operands and result for a weight in 8 bits: the quantized
/// input, `pixels` times `channels` elements, and the range of each row, if it has its own.
pub fn int8_workspace(pixels: usize, channels: usize, is_by_row: bool) -> Workspace {
    Workspace::call(pixels * channels + if is_by_row { pixels * size_of::<Quantizer>() } else { 0 })
}
