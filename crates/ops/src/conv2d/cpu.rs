//! Convolution on the processor: patches of some pixels are gathered into a matrix that stays in the cache, and
//! multiplied with the kernel. Channels-last patches are gathered by whole pixels. A 1x1 convolution needs no patches.

use candle_core::Tensor;
use rayon::prelude::*;

use super::{Conv2d, Conv2dInputs, OP, Shapes};
use crate::cpu::{Matrix, View, matmul};
use crate::error::Result;
use crate::output::write_cpu;

/// Bytes of the patch matrix of one task: half of a usual second-level cache, the kernel's panels take the rest.
const PATCH_BYTES: usize = 512 << 10;

pub(super) fn forward(
    inputs: Conv2dInputs<'_>,
    config: Conv2d,
    shapes: Shapes,
    out: Option<&Tensor>,
) -> Result<Tensor> {
    let Shapes { b, kh, kw, c_in, h_out, w_out, c_out, .. } = shapes;
    let k = kh * kw * c_in;
    let x = View::new(inputs.x)?;
    let weight = View::new(inputs.weight)?;
    let bias = View::optional(inputs.bias)?;
    let image_bias = View::optional(inputs.image_bias)?;
    let residual = View::optional(inputs.residual)?;

    let mut operands = vec![inputs.x, inputs.weight];
    operands.extend([inputs.bias, inputs.image_bias, inputs.residual].into_iter().flatten());
    let pixels = h_out * w_out;
    let per_task = (PATCH_BYTES / (4 * k.max(1))).clamp(32, 512);
    let direct = kh == 1 && kw == 1 && config.stride == 1 && config.pad_before == 0 && config.pad_after == 0;

    write_cpu(OP, out, &[b, h_out, w_out, c_out], inputs.x.dtype(), &operands, |y| {
        y.par_chunks_mut((per_task * c_out).max(1)).enumerate().for_each_init(Vec::new, |patches, (task, y)| {
            let first = task * per_task;
            let count = y.len() / c_out;
            let rows = if direct {
                &x[first * k..(first + count) * k]
            } else {
                patches.resize(count * k, 0f32);
                for (pixel, patch) in (first..).zip(patches.chunks_exact_mut(k)) {
                    gather(&x, config, shapes, pixel, patch);
                }
                &patches[..]
            };
            matmul((count, c_out, k), 1.0, Matrix::rows(rows, k), Matrix::rows(&weight, k).transposed(), y, c_out);
            for (pixel, y) in (first..).zip(y.chunks_exact_mut(c_out)) {
                let image = pixel / pixels;
                if let Some(bias) = &bias {
                    add(y, bias);
                }
                if let Some(image_bias) = &image_bias {
                    let row = if image_bias.len() == c_out { 0 } else { image };
                    add(y, &image_bias[row * c_out..(row + 1) * c_out]);
                }
                if let Some(residual) = &residual {
                    add(y, &residual[pixel * c_out..(pixel + 1) * c_out]);
                }
            }
        });
    })
}

/// Copies the window of output pixel `pixel` into `patch`, `(kh, kw, c_in)`, zeros where it lies outside of the image.
fn gather(x: &[f32], config: Conv2d, shapes: Shapes, pixel: usize, patch: &mut [f32]) {
    let Shapes { h, w, c_in, kw, h_out, w_out, .. } = shapes;
    let (image, i, j) = (pixel / (h_out * w_out), pixel / w_out % h_out, pixel % w_out);
    for (tap, patch) in patch.chunks_exact_mut(c_in).enumerate() {
        let row = (i * config.stride + tap / kw).wrapping_sub(config.pad_before);
        let column = (j * config.stride + tap % kw).wrapping_sub(config.pad_before);
        if row < h && column < w {
            let start = ((image * h + row) * w + column) * c_in;
            patch.copy_from_slice(&x[start..start + c_in]);
        } else {
            patch.fill(0.0);
        }
    }
}

fn add(y: &mut [f32], x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}
