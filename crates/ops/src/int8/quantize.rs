//! Activations as bytes.

use rayon::prelude::*;

use super::MOST as LARGEST_WEIGHT;
use crate::cpu::Element;
use crate::cpu::math::for_every_isa;
use crate::cpu::rounding::LANES;

/// The largest byte.
const MOST: f32 = 255.0;
/// 1.5 * 2^23: adding it rounds to an integer, ties to even, which is then in the low bits.
const ROUNDER: f32 = 12_582_912.0;
/// The bits of infinity: a magnitude with larger bits is no number.
const INFINITY: u32 = 0x7f80_0000;
/// Elements that a task measures at a time.
const PART: usize = 1 << 15;

/// The least and the largest value of some activations and 0.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Range {
    least: f32,
    largest: f32,
    /// The bits of the largest magnitude: those of no number are larger than those of numbers.
    magnitude: u32,
}

impl Range {
    /// The range of both.
    pub(crate) fn with(self, other: Self) -> Self {
        Self {
            least: self.least.min(other.least),
            largest: self.largest.max(other.largest),
            magnitude: self.magnitude.max(other.magnitude),
        }
    }
}

/// The map from activations to bytes: `x = scale (q - zero)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Quantizer {
    /// NaN where the range is not finite, so that the results are no numbers either.
    pub(crate) scale: f32,
    pub(crate) zero: u8,
}

impl Quantizer {
    /// For a range that was measured at the call.
    pub(crate) fn of(range: Range) -> Self {
        if range.magnitude >= INFINITY {
            return Self { scale: f32::NAN, zero: 0 };
        }
        Self::fixed([range.least, range.largest])
    }

    /// For a range that was measured before.
    pub(crate) fn fixed([least, largest]: [f32; 2]) -> Self {
        let (least, largest) = (least.min(0.0), largest.max(0.0));
        let width = largest - least;
        if width <= 0.0 || !width.is_finite() {
            return Self { scale: if width == 0.0 { 1.0 } else { f32::NAN }, zero: 0 };
        }
        Self { scale: width / MOST, zero: (-least / width * MOST).round_ties_even().clamp(0.0, MOST) as u8 }
    }
}

for_every_isa! {
    /// Widens `range` to hold `values`, pixels of as many channels as `balance` has factors; an empty one has no effect.
    fn widen<T: Element>(values: &[T], balance: &[f32], range: &mut Range) {
        let mut least = [range.least; LANES];
        let mut largest = [range.largest; LANES];
        let mut magnitude = [range.magnitude; LANES];
        if balance.is_empty() {
            let (chunks, rest) = values.as_chunks::<LANES>();
            for chunk in chunks {
                for i in 0..LANES {
                    hold(&mut least[i], &mut largest[i], &mut magnitude[i], chunk[i].to_f32());
                }
            }
            for (i, value) in rest.iter().enumerate() {
                hold(&mut least[i], &mut largest[i], &mut magnitude[i], value.to_f32());
            }
        } else {
            for pixel in values.chunks_exact(balance.len()) {
                let (chunks, rest) = pixel.as_chunks::<LANES>();
                let (factors, last) = balance.as_chunks::<LANES>();
                for (chunk, factors) in chunks.iter().zip(factors) {
                    for i in 0..LANES {
                        hold(&mut least[i], &mut largest[i], &mut magnitude[i], chunk[i].to_f32() * factors[i]);
                    }
                }
                for (i, (value, factor)) in rest.iter().zip(last).enumerate() {
                    hold(&mut least[i], &mut largest[i], &mut magnitude[i], value.to_f32() * factor);
                }
            }
        }
        for lane in 0..LANES {
            let one = Range { least: least[lane], largest: largest[lane], magnitude: magnitude[lane] };
            *range = range.with(one);
        }
    }
}

/// Widens a range to hold a value. A NaN changes the magnitude alone.
#[inline(always)]
fn hold(least: &mut f32, largest: &mut f32, magnitude: &mut u32, value: f32) {
    *least = if value < *least { value } else { *least };
    *largest = if value > *largest { value } else { *largest };
    *magnitude = (*magnitude).max(value.to_bits() & 0x7fff_ffff);
}

for_every_isa! {
    /// Writes the bytes of `values`, as many as there are, pixels as in [`widen`].
    ///
    /// Flat loops: one over chunks of lanes is vectorized across the chunks, with gathers.
    fn to_bytes<T: Element>(values: &[T], balance: &[f32], by: Quantizer, bytes: &mut [u8]) {
        let inverse = if by.scale > 0.0 { 1.0 / by.scale } else { 0.0 };
        let zero = f32::from(by.zero);
        if balance.is_empty() {
            for (value, byte) in values.iter().zip(bytes) {
                *byte = to_byte(value.to_f32() * inverse + zero);
            }
        } else {
            for (pixel, bytes) in values.chunks_exact(balance.len()).zip(bytes.chunks_exact_mut(balance.len())) {
                for ((value, factor), byte) in pixel.iter().zip(balance).zip(bytes) {
                    *byte = to_byte(value.to_f32() * factor * inverse + zero);
                }
            }
        }
    }
}

/// The nearest integer of 0..=255, ties to even.
#[inline(always)]
fn to_byte(value: f32) -> u8 {
    let low = if value > 0.0 { value } else { 0.0 };
    let clamped = if low < MOST { low } else { MOST };
    (clamped + ROUNDER).to_bits() as u8
}

for_every_isa! {
    /// The largest magnitude of weights that are numbers, or `largest`.
    pub(super) fn largest_magnitude(values: &[f32], largest: &mut f32) {
        let (chunks, rest) = values.as_chunks::<LANES>();
        let mut lanes = [*largest; LANES];
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] = if chunk[i].abs() > lanes[i] { chunk[i].abs() } else { lanes[i] };
            }
        }
        *largest = lanes.iter().chain(rest).fold(*largest, |largest, value| largest.max(value.abs()));
    }
}

for_every_isa! {
    /// Writes the signed bytes of weights, the nearest integers of `value / scale`, ties to even; 0 for what is no number.
    ///
    /// A flat loop without calls: a baseline x86-64 has no instruction that rounds.
    pub(super) fn to_signed_bytes(values: &[f32], scale: f32, bytes: &mut [i8]) {
        for (value, byte) in values.iter().zip(bytes) {
            let value = value / scale;
            let low = if value > -LARGEST_WEIGHT { value } else { -LARGEST_WEIGHT };
            let clamped = if low < LARGEST_WEIGHT { low } else { LARGEST_WEIGHT };
            let number = if value.is_nan() { 0.0 } else { clamped };
            *byte = (number + ROUNDER).to_bits() as i8;
        }
    }
}

/// Quantizes rows of `channels` activations, each by its own range, or all by `fixed`. `bytes` has as many elements as
/// `values`, `quantizers` one for each row.
pub(crate) fn quantize<T: Element>(
    values: &[T],
    balance: &[f32],
    channels: usize,
    fixed: Option<Quantizer>,
    bytes: &mut [u8],
    quantizers: &mut [Quantizer],
) {
    let rows = (PART / channels.max(1)).max(1);
    let parts = values.par_chunks(rows * channels.max(1)).zip(bytes.par_chunks_mut(rows * channels.max(1)));
    parts.zip(quantizers.par_chunks_mut(rows)).for_each(|((values, bytes), quantizers)| {
        let rows = values.chunks_exact(channels.max(1)).zip(bytes.chunks_exact_mut(channels.max(1)));
        for ((values, bytes), quantizer) in rows.zip(quantizers) {
            *quantizer = fixed.unwrap_or_else(|| {
                let mut range = Range::default();
                widen(values, balance, &mut range);
                Quantizer::of(range)
            });
            to_bytes(values, balance, *quantizer, bytes);
        }
    });
}

/// The range of pixels of `channels` activations. Neither the order nor the number of threads changes it.
pub(crate) fn largest_range<T: Element>(values: &[T], balance: &[f32], channels: usize) -> Range {
    let part = (PART / channels.max(1)).max(1) * channels.max(1);
    let measured = values.par_chunks(part).map(|values| {
        let mut range = Range::default();
        widen(values, balance, &mut range);
        range
    });
    measured.reduce(Range::default, Range::with)
}

impl Quantizer {
    /// Writes the bytes of pixels of `channels` activations.
    pub(crate) fn apply<T: Element>(self, values: &[T], balance: &[f32], channels: usize, bytes: &mut [u8]) {
        let part = (PART / channels.max(1)).max(1) * channels.max(1);
        let parts = values.par_chunks(part).zip(bytes.par_chunks_mut(part));
        parts.for_each(|(values, bytes)| to_bytes(values, balance, self, bytes));
    }
}
