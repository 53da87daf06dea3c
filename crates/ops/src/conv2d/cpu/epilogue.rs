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
    /// The sums with the biases are multiplied by this.
    pub(super) scale: f32,
    /// Added after that: maps of the shape of the result, and their factors.
    pub(super) addends: [(f32, Option<&'a [T]>); 2],
    /// The slope of the activation for values under 0, for each channel.
    pub(super) slopes: Option<&'a [f32]>,
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
        let addends = self.addends.map(|(factor, map)| (factor, map.map_or(&[][..], |map| &map[place.clone()])));
        let slopes = self.slopes.map_or(&[][..], |slopes| &slopes[columns.clone()]);
        // SAFETY: every pixel and channel is finished by one task, once.
        #[allow(unsafe_code)]
        let y = unsafe { self.y.part(place) };
        add_and_round(sums, bias, image_bias, self.scale, addends, slopes, y);
    }
}

for_every_isa! {
    /// Rounds `scale (sums + bias + image_bias) + addends`, under 0 multiplied by the slope, into `y`. A slice may be empty:
    /// then it adds nothing, and nothing is multiplied.
    fn add_and_round<T: Element, R: Rounding>(
        sums: &[f32],
        bias: &[f32],
        image_bias: &[f32],
        scale: f32,
        addends: [(f32, &[T]); 2],
        slopes: &[f32],
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
            lanes.iter_mut().for_each(|sum| *sum *= scale);
            for (factor, addend) in addends {
                if let Some(addend) = addend.as_chunks::<LANES>().0.get(i) {
                    lanes.iter_mut().zip(addend).for_each(|(sum, addend)| *sum += factor * addend.to_f32());
                }
            }
            if let Some(slopes) = slopes.as_chunks::<LANES>().0.get(i) {
                lanes.iter_mut().zip(slopes).for_each(|(sum, slope)| *sum = if *sum > 0.0 { *sum } else { *sum * slope });
            }
            R::round(&lanes, y);
        }
        let done = chunks.len() * LANES;
        for (i, (sum, y)) in rest.iter().zip(last).enumerate() {
            let bias: f32 = [bias, image_bias].iter().filter_map(|addend| addend.get(done + i)).sum();
            let mut sum = (sum + bias) * scale;
            for (factor, addend) in addends {
                sum += addend.get(done + i).map_or(0.0, |addend| factor * addend.to_f32());
            }
            *y = T::from_f32(if sum > 0.0 { sum } else { sum * slopes.get(done + i).copied().unwrap_or(1.0) });
        }
    }
}
