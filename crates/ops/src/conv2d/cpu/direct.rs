//! The implicit matrix product. Rows are output pixels, gathered from the input a block of the window's elements at a
//! time. In channels-last maps each tap is one run of contiguous elements.

use super::epilogue::Epilogue;
use super::{Conv2d, Part, Shapes};
use crate::cpu::Element;
use crate::cpu::product::{Panels, Product};

/// `first` is the column of the result for the first column of `weight`.
pub(super) fn run<T: Element>(
    x: &[Part<'_, T>],
    weight: Panels<'_, T>,
    first: usize,
    config: Conv2d,
    shapes: Shapes,
    epilogue: &Epilogue<'_, T>,
) {
    Product { m: shapes.b * shapes.h_out * shapes.w_out, b: weight }.run(
        |pixel, start, patch| gather(x, config, shapes, pixel, start, patch, || T::ZERO),
        |tile| {
            for pixel in tile.rows.clone() {
                epilogue.finish(pixel, first + tile.columns.start..first + tile.columns.end, tile.row(pixel));
            }
        },
    );
}

/// Copies elements `start..` of the window of output pixel `pixel`, `(kh, kw, c_in)`, with `zero` outside of the image.
pub(super) fn gather<T: Copy>(
    parts: &[Part<'_, T>],
    config: Conv2d,
    shapes: Shapes,
    pixel: usize,
    start: usize,
    patch: &mut [T],
    zero: impl Fn() -> T,
) {
    let Shapes { h, w, c_in, kw, h_out, w_out, pad_top, .. } = shapes;
    let (image, i, j) = (pixel / (h_out * w_out), pixel / w_out % h_out, pixel % w_out);
    let (mut tap, mut channel) = (start / c_in, start % c_in);
    let mut rest = patch;
    while !rest.is_empty() {
        let (part, from) = Part::of(parts, channel);
        let count = rest.len().min(part.channels - from);
        let (run, after) = rest.split_at_mut(count);
        let row = (i * config.stride + tap / kw).wrapping_sub(pad_top);
        let column = (j * config.stride + tap % kw).wrapping_sub(config.pad_before);
        if row < h && column < w {
            let from = ((image * h + row) * w + column) * part.channels + from;
            run.copy_from_slice(&part.values[from..from + count]);
        } else {
            run.fill(zero());
        }
        channel += count;
        if channel == c_in {
            (tap, channel) = (tap + 1, 0);
        }
        rest = after;
    }
}
