//! The addends of a convolution, which are added to its sums before the result is rounded.

use std::ops::Range;

use crate::cpu::math::for_every_isa;
use crate::cpu::rounding::LANES;
use crate::cpu::vector::Vector;
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

/// The addends of some channels of a tile of pixels of one image, and where they go.
pub(super) struct TileEpilogue<'a, T, const N: usize> {
    channels: usize,
    bias: &'a [f32],
    image_bias: &'a [f32],
    scale: f32,
    slopes: &'a [f32],
    /// Factors, and the first of the channels of each pixel.
    addends: [(f32, Option<[*const T; N]>); 2],
    /// Null for pixels outside of the image.
    results: [*mut T; N],
}

impl<'a, const N: usize> TileEpilogue<'a, f32, N> {
    /// Nothing is added: the sums are the results.
    pub(super) fn sums(values: &'a mut [[f32; LANES]; N]) -> Self {
        let results = values.each_mut().map(|values| values.as_mut_ptr());
        let addends = [(0.0, None); 2];
        Self { channels: LANES, bias: &[], image_bias: &[], scale: 1.0, slopes: &[], addends, results }
    }
}

#[allow(unsafe_code)]
impl<T: Element, const N: usize> TileEpilogue<'_, T, N> {
    /// The number of channels.
    pub(super) fn channels(&self) -> usize {
        self.channels
    }

    /// Finishes [`LANES`] channels from `channel` on, of the sums of some pixels from `first` on.
    ///
    /// # Safety
    /// There are so many channels.
    #[inline(always)]
    pub(super) unsafe fn finish<V: Vector>(&self, sums: &[V], first: usize, channel: usize) {
        // SAFETY: slices are empty or have a value for each channel; pointers are those of as many channels of a pixel.
        unsafe {
            let load = |slice: &[f32], empty: f32| {
                if slice.is_empty() { V::splat(empty) } else { V::load(slice.as_ptr().add(channel)) }
            };
            let (bias, image_bias) = (load(self.bias, 0.0), load(self.image_bias, 0.0));
            let (scale, slope) = (V::splat(self.scale), load(self.slopes, 1.0));
            for (i, sum) in (first..N).zip(sums) {
                if self.results[i].is_null() {
                    continue;
                }
                let mut sum = sum.add(bias).add(image_bias).mul(scale);
                for (factor, starts) in &self.addends {
                    if let Some(starts) = starts {
                        sum = sum.add(V::load(starts[i].add(channel)).mul(V::splat(*factor)));
                    }
                }
                if !self.slopes.is_empty() {
                    sum = sum.with_slope(slope);
                }
                sum.store(self.results[i].add(channel));
            }
        }
    }
}

impl<T: Element> Epilogue<'_, T> {
    /// Finishes some channels of a tile, whose pixels are counted over the whole batch, `None` outside of the image. Each is
    /// finished once, by one task.
    pub(super) fn tile<const N: usize>(
        &self,
        pixels: [Option<usize>; N],
        columns: Range<usize>,
    ) -> TileEpilogue<'_, T, N> {
        let first = pixels.iter().flatten().next().copied().unwrap_or_default();
        let place = |pixel: usize| pixel * self.c_out + columns.start..pixel * self.c_out + columns.end;
        TileEpilogue {
            channels: columns.len(),
            bias: self.bias.map_or(&[][..], |bias| &bias[columns.clone()]),
            image_bias: self.image_bias(first, columns.clone()),
            scale: self.scale,
            slopes: self.slopes.map_or(&[][..], |slopes| &slopes[columns.clone()]),
            addends: self.addends.map(|(factor, map)| {
                let start = |map: &[T], pixel: Option<usize>| {
                    pixel.map_or(std::ptr::null(), |pixel| map[place(pixel)].as_ptr())
                };
                (factor, map.map(|map| pixels.map(|pixel| start(map, pixel))))
            }),
            results: pixels.map(|pixel| {
                // SAFETY: every pixel and channel is finished by one task, once.
                #[allow(unsafe_code)]
                pixel.map_or(std::ptr::null_mut(), |pixel| unsafe { self.y.part(place(pixel)) }.as_mut_ptr())
            }),
        }
    }

    /// The biases of a pixel's image.
    fn image_bias(&self, pixel: usize, columns: Range<usize>) -> &[f32] {
        self.image_bias.map_or(&[][..], |bias| {
            let row = if bias.len() == self.c_out { 0 } else { pixel / self.pixels };
            &bias[row * self.c_out..][columns]
        })
    }

    /// Finishes some channels of a pixel, counted over the whole batch. Each is finished once, by one task.
    pub(super) fn finish(&self, pixel: usize, columns: Range<usize>, sums: &[f32]) {
        let bias = self.bias.map_or(&[][..], |bias| &bias[columns.clone()]);
        let image_bias = self.image_bias(pixel, columns.clone());
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
        if rest.is_empty() {
            return;
        }
        // As many lanes as are left, in vectors too: one by one they would take longer than the sums of a few channels.
        let done = chunks.len() * LANES;
        let padded = |slice: &[f32], fill: f32| {
            let mut lanes = [fill; LANES];
            lanes.iter_mut().zip(slice.get(done..).unwrap_or_default()).for_each(|(lane, value)| *lane = *value);
            lanes
        };
        let mut lanes = padded(sums, 0.0);
        for addend in [bias, image_bias] {
            lanes.iter_mut().zip(padded(addend, 0.0)).for_each(|(sum, addend)| *sum += addend);
        }
        lanes.iter_mut().for_each(|sum| *sum *= scale);
        for (factor, addend) in addends {
            let addend = addend.get(done..).unwrap_or_default();
            lanes.iter_mut().zip(addend).for_each(|(sum, addend)| *sum += factor * addend.to_f32());
        }
        if !slopes.is_empty() {
            let slopes = padded(slopes, 1.0);
            lanes.iter_mut().zip(slopes).for_each(|(sum, slope)| *sum = if *sum > 0.0 { *sum } else { *sum * slope });
        }
        let mut rounded = [T::ZERO; LANES];
        R::round(&lanes, &mut rounded);
        last.iter_mut().zip(rounded).for_each(|(y, value)| *y = value);
    }
}
