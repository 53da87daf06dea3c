//! Convolution on the processor: an implicit matrix product. Rows are output pixels, gathered from the input a block of
//! the kernel's elements at a time: in channels-last maps each tap is one run of neighbouring elements.

use candle_core::Tensor;

use super::{Conv2d, Conv2dInputs, OP, Shapes};
use crate::cpu::product::{Panels, Product, pack, packed_len};
use crate::cpu::{Element, Shared, View};
use crate::error::Result;
use crate::output::write;
use crate::packing::WeightLayout;

pub(super) fn forward(
    inputs: Conv2dInputs<'_>,
    config: Conv2d,
    shapes: Shapes,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    dispatch!(OP, "x", inputs.x.dtype(), typed(inputs, config, shapes, out))
}

fn typed<T: Element>(inputs: Conv2dInputs<'_>, config: Conv2d, shapes: Shapes, out: Option<&Tensor>) -> Result<Tensor> {
    let Shapes { b, kh, kw, c_in, h_out, w_out, c_out, .. } = shapes;
    let k = kh * kw * c_in;
    let x = View::<T>::new(inputs.x)?;
    let stored = View::<T>::new(inputs.weight.tensor())?;
    let mut panels = Vec::new();
    let weight = match inputs.weight.layout() {
        WeightLayout::Panels => Panels::new(&stored, k, c_out),
        WeightLayout::Plain => {
            panels.resize(packed_len(k, c_out), T::ZERO);
            pack(k, c_out, T::PAIRED, |row, column| stored[column * k + row], &mut panels);
            Panels::new(&panels, k, c_out)
        }
    };
    let bias = View::<f32>::optional(inputs.bias)?;
    let image_bias = View::<f32>::optional(inputs.image_bias)?;
    let residual = View::<T>::optional(inputs.residual)?;

    let mut operands = vec![inputs.x, inputs.weight.tensor()];
    operands.extend([inputs.bias, inputs.image_bias, inputs.residual].into_iter().flatten());
    let pixels = h_out * w_out;
    write::<T>(OP, out, &[b, h_out, w_out, c_out], &operands, |y| {
        let y = Shared::new(y);
        Product { m: b * pixels, b: weight }.run(
            |pixel, start, patch| gather(&x, config, shapes, pixel, start, patch),
            |tile| {
                let columns = tile.columns.clone();
                let bias = bias.as_ref().map(|bias| &bias[columns.clone()]);
                let mut sums = vec![0f32; columns.len()];
                for pixel in tile.rows.clone() {
                    sums.copy_from_slice(tile.row(pixel));
                    if let Some(bias) = bias {
                        add(&mut sums, bias);
                    }
                    if let Some(image_bias) = &image_bias {
                        let row = if image_bias.len() == c_out { 0 } else { pixel / pixels };
                        add(&mut sums, &image_bias[row * c_out..][columns.clone()]);
                    }
                    let place = pixel * c_out + columns.start..pixel * c_out + columns.end;
                    if let Some(residual) = &residual {
                        for (sum, residual) in sums.iter_mut().zip(&residual[place.clone()]) {
                            *sum += residual.to_f32();
                        }
                    }
                    // SAFETY: tiles do not overlap, and a task writes the rows of its tile one after another.
                    #[allow(unsafe_code)]
                    let y = unsafe { y.part(place) };
                    y.iter_mut().zip(&sums).for_each(|(y, sum)| *y = T::from_f32(*sum));
                }
            },
        );
    })
}

/// Copies elements `start..` of the window of output pixel `pixel`, `(kh, kw, c_in)`, zeros where it lies outside of the
/// image.
fn gather<T: Element>(x: &[T], config: Conv2d, shapes: Shapes, pixel: usize, start: usize, patch: &mut [T]) {
    let Shapes { h, w, c_in, kw, h_out, w_out, .. } = shapes;
    let (image, i, j) = (pixel / (h_out * w_out), pixel / w_out % h_out, pixel % w_out);
    let (mut tap, mut channel) = (start / c_in, start % c_in);
    let mut rest = patch;
    while !rest.is_empty() {
        let count = rest.len().min(c_in - channel);
        let (run, after) = rest.split_at_mut(count);
        let row = (i * config.stride + tap / kw).wrapping_sub(config.pad_before);
        let column = (j * config.stride + tap % kw).wrapping_sub(config.pad_before);
        if row < h && column < w {
            let from = ((image * h + row) * w + column) * c_in + channel;
            run.copy_from_slice(&x[from..from + count]);
        } else {
            run.fill(T::ZERO);
        }
        (tap, channel, rest) = (tap + 1, 0, after);
    }
}

fn add(y: &mut [f32], x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}
