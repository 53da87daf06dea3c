//! Convolutions and linear layers whose weight is stored in 8 bits ([`crate::int8`]): the implicit matrix product of
//! quantized windows.

use kiln_mempool::HostPool;

use super::epilogue::Epilogue;
use super::{Conv2d, Part, Shapes, direct};
use crate::cpu::math::for_every_isa;
use crate::cpu::product::bytes::BytePanels;
use crate::cpu::{Element, Scratch};
use crate::error::Result;
use crate::int8::{Int8Input, Int8Matrix, Quantizer, largest_range, quantize};

/// Sums that are scaled at a time.
const PART: usize = 256;

/// A quantized input: the bytes of each part, and how they were made.
pub(super) struct Input {
    parts: Vec<(Vec<u8>, usize)>,
    /// One for each pixel of the result, or one for each image.
    quantizers: Vec<Quantizer>,
    /// Pixels of the result that each of them is for.
    pixels: usize,
}

impl Input {
    /// Quantizes the parts of an input.
    ///
    /// # Errors
    /// Where there is no memory for the bytes.
    pub(super) fn new<T: Element>(
        x: &[Part<'_, T>],
        config: Conv2d,
        shapes: Shapes,
        input: &Int8Input,
    ) -> Result<Self> {
        let Shapes { b, h, w, kh, kw, h_out, w_out, .. } = shapes;
        let fixed = input.range.map(Quantizer::fixed);
        let balance = input.balance.as_deref().unwrap_or_default();
        let mut parts = Vec::with_capacity(x.len());
        for part in x {
            let mut bytes = HostPool::vector::<u8>(part.values.len())?;
            bytes.resize(part.values.len(), 0);
            parts.push((bytes, part.channels));
        }
        let none = Quantizer { scale: 0.0, zero: 0 };
        // A single map whose pixels are rows of the product.
        if let ([part], true) = (x, (kh, kw) == (1, 1) && config == Conv2d::same(1)) {
            let mut quantizers = HostPool::vector::<Quantizer>(b * h * w)?;
            quantizers.resize(b * h * w, none);
            quantize(part.values, balance, part.channels, fixed, &mut parts[0].0, &mut quantizers);
            return Ok(Self { parts, quantizers, pixels: 1 });
        }
        let mut quantizers = vec![none; b];
        for (image, quantizer) in quantizers.iter_mut().enumerate() {
            let mut first = 0; // channel of the whole input
            let of_parts = x.iter().map(|part| {
                let balance = balance.get(first..first + part.channels).unwrap_or_default();
                first += part.channels;
                let size = h * w * part.channels;
                (&part.values[image * size..(image + 1) * size], balance, part.channels)
            });
            let of_parts: Vec<_> = of_parts.collect();
            *quantizer = fixed.unwrap_or_else(|| {
                let ranges = of_parts.iter().map(|(values, balance, c)| largest_range(values, balance, *c));
                Quantizer::of(ranges.reduce(|all, one| all.with(one)).unwrap_or_default())
            });
            for ((values, balance, channels), (bytes, _)) in of_parts.into_iter().zip(&mut parts) {
                let size = values.len();
                quantizer.apply(values, balance, channels, &mut bytes[image * size..(image + 1) * size]);
            }
        }
        Ok(Self { parts, quantizers, pixels: h_out * w_out })
    }

    fn quantizer(&self, pixel: usize) -> Quantizer {
        self.quantizers[pixel / self.pixels.max(1)]
    }
}

/// `memory` holds the panels of the weight.
pub(super) fn run<T: Element>(
    input: &Input,
    matrix: Int8Matrix,
    memory: &[u8],
    config: Conv2d,
    shapes: Shapes,
    epilogue: &Epilogue<'_, T>,
) {
    let (scales, sums) = matrix.columns(memory);
    let parts: Vec<_> = input.parts.iter().map(|(values, channels)| Part { values, channels: *channels }).collect();
    let pixels = shapes.b * shapes.h_out * shapes.w_out;
    BytePanels::new(memory, matrix.panel_bytes(), matrix.k(), shapes.c_out).multiply(
        pixels,
        |pixel, start, patch| {
            direct::gather(&parts, config, shapes, pixel, start, patch, || input.quantizer(pixel).zero);
        },
        |tile| {
            let mut scaled = Scratch::default();
            let scaled = scaled.get::<f32>(PART);
            for pixel in tile.rows.clone() {
                let by = input.quantizer(pixel);
                for (i, values) in tile.row(pixel).chunks(PART).enumerate() {
                    let first = tile.columns.start + i * PART;
                    let columns = first..first + values.len();
                    let (scales, sums) = (&scales[columns.clone()], &sums[columns.clone()]);
                    let scaled = &mut scaled[..values.len()];
                    scale(values, scales, sums, by, scaled);
                    epilogue.finish(pixel, columns, scaled);
                }
            }
        },
    );
}

for_every_isa! {
    /// `scale scales (values - zero sums)`, where `values` have the bits of `i32`.
    ///
    /// A flat loop: one over chunks of lanes is vectorized across the chunks, with gathers.
    fn scale(values: &[f32], scales: &[f32], sums: &[i32], by: Quantizer, scaled: &mut [f32]) {
        let zero = i32::from(by.zero);
        for (((scaled, value), scale), sum) in scaled.iter_mut().zip(values).zip(scales).zip(sums) {
            let exact = value.to_bits().cast_signed().wrapping_sub(zero.wrapping_mul(*sum));
            *scaled = exact as f32 * (scale * by.scale);
        }
    }
}
