//! The addends of a convolution, which are added to its sums before the result is rounded.

use std::ops::Range;

use crate::cpu::math::for_every_isa;
use crate::cpu::rounding::LANES;
use crate::cpu::{Element, Shared};

/// The addends of a convolution and its result.
pub(super) struct Epilogue<'a, T> {
    /// `(c_out)`.
    pub(super) bias: Option<&'a [f32]>,
    /// `(b, c_out)` or `(1, c_out)`.
    pub(super) image_bias: Option<&'a [f32]>,
    /// Of the shape of the result.
    pub(super) residual: Option<&'a [T]>,
    /// Pixels of an image.
    pub(super) pixels: usize,
    pub(super) c_out: usize,
    /// `(b, h_out, w_out, c_out)`.
    pub(super) y: Shared<'a, T>,
}

impl<T: Element> Epilogue<'_, T> {
    /// Finishes some channels of a pixel, counted over the whole batch. Each is finished once, by one task.
    pub(super) fn finish(&self, pixel: usize, columns: Range<usize>, sums: &[f32]) {
        let bias = self.bias.map_or(&[][..], |bias| &bias[columns.clone()]);
        let image_bias = self.image_bias.map_or(&[][..], |bias| {
            let row = if bias.len() == self.c_out { 0 } else { pixel / self.pixels };
            &bias[row * self.c_out..][columns.clone()]
        });
        let place = pixel * self.c_out + columns.start..pixel * self.c_out + columns.end;
        let residual = self.residual.map_or(&[][..], |residual| &residual[place.clone()]);
        // SAFETY: every pixel and channel is finished by one task, once.
        #[allow(unsafe_code)]
        let y = unsafe { self.y.part(place) };
        add_and_round(sums, bias, image_bias, residual, y);
    }
}

for_every_isa! {
    /// Rounds `sums + bias + image_bias + residual` into `y`; an addend may be empty.
    fn add_and_round<T: Element, R: Rounding>(
        sums: &[f32],
        bias: &[f32],
        image_bias: &[f32],
        residual: &[T],
        y: &mut [T],
    ) {
        let (chunks, rest) = sums.as_chunks::<LANES>();
        let (places, last) = y.as_chunks_mut::<LANES>();
        let whole = |slice: &[f32], i: usize| slice.as_chunks::<LANES>().0.get(i).copied().unwrap_or([0.0; LANES]);
        for (i, (sums, y)) in chunks.iter().zip(places).enumerate() {
            let mut lanes = *sums;
            for addend in [bias, image_bias] {
                lanes.iter_mut().zip(whole(addend, i)).for_each(|(sum, addend)| *sum += addend);
            }
            if let Some(addend) = residual.as_chunks::<LANES>().0.get(i) {
                lanes.iter_mut().zip(addend).for_each(|(sum, addend)| *sum += addend.to_f32());
            }
            R::round(&lanes, y);
        }
        let done = chunks.len() * LANES;
        for (i, (sum, y)) in rest.iter().zip(last).enumerate() {
            let bias: f32 = [bias, image_bias].iter().filter_map(|addend| addend.get(done + i)).sum();
            *y = T::from_f32(sum + bias + residual.get(done + i).map_or(0.0, |addend| addend.to_f32()));
        }
    }
}
