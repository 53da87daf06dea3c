//! The linear transforms of Winograd's F(2x2, 3x3): tiles of 4x4 inputs, of 3x3 weights and of 4x4 products, each for
//! `LANES` channels at a time, first along the columns, then along the rows. The values of a tile stay in registers, and the
//! outputs are finished there.
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::epilogue::TileEpilogue;
use crate::cpu::Element;
use crate::cpu::math::for_every_isa;
pub(super) use crate::cpu::rounding::LANES;
use crate::cpu::vector::Vector;

/// Inputs of a tile in each direction.
pub(super) const TILE: usize = 4;
/// Outputs of a tile in each direction.
pub(super) const OUT: usize = 2;
/// Products of a tile.
pub(super) const POSITIONS: usize = TILE * TILE;
/// Outputs of a tile.
pub(super) const OUTPUTS: usize = OUT * OUT;
/// Weights of a kernel.
pub(super) const TAPS: usize = 9;

/// Slices of one length that are read together. Pointers without lengths: the compiler compares lengths in vectors, which wait
/// for the stores that made the slices.
pub(super) struct Sources<'a, T, const N: usize> {
    starts: [*const T; N],
    count: usize,
    lifetime: PhantomData<&'a [T]>,
}

impl<'a, T, const N: usize> Sources<'a, T, N> {
    /// The first `count` values of `slice(0)`, `slice(1)`, ... Panics where one is shorter.
    pub(super) fn new(count: usize, slice: impl Fn(usize) -> &'a [T]) -> Self {
        let mut starts = [std::ptr::null(); N];
        for (i, start) in starts.iter_mut().enumerate() {
            *start = slice(i)[..count].as_ptr();
        }
        Self { starts, count, lifetime: PhantomData }
    }
}

impl<'a, T> Sources<'a, T, POSITIONS> {
    /// The first `count` values from `first` on, and from pixels after it, which are a pixel and a row of pixels apart. Panics where
    /// the last one is not inside of `values`.
    pub(super) fn inside(count: usize, values: &'a [T], first: usize, [row, pixel]: [usize; 2]) -> Self {
        let values = &values[first..][..(TILE - 1) * (row + pixel) + count];
        let mut starts = [std::ptr::null(); POSITIONS];
        for (i, start) in starts.iter_mut().enumerate() {
            // SAFETY: no pixel is after the last one.
            *start = unsafe { values.as_ptr().add(i / TILE * row + i % TILE * pixel) };
        }
        Self { starts, count, lifetime: PhantomData }
    }
}

/// Slices of one length that are written together.
pub(super) struct Targets<'a, T, const N: usize> {
    starts: [*mut T; N],
    count: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<'a, T, const N: usize> Targets<'a, T, N> {
    /// The first `count` values of each slice. Panics where there are fewer than `N` slices, or where one is shorter.
    pub(super) fn new(count: usize, mut slices: impl Iterator<Item = &'a mut [T]>) -> Self {
        let mut starts = [std::ptr::null_mut(); N];
        for start in &mut starts {
            *start = slices.next().unwrap_or_default()[..count].as_mut_ptr();
        }
        Self { starts, count, lifetime: PhantomData }
    }

    /// Some of these values.
    pub(super) fn part(&mut self, values: std::ops::Range<usize>) -> Targets<'_, T, N> {
        assert!(values.start <= values.end && values.end <= self.count);
        // SAFETY: the range is inside of the values.
        let starts = self.starts.map(|start| unsafe { start.add(values.start) });
        Targets { starts, count: values.len(), lifetime: PhantomData }
    }
}

/// The transform of a line of a tile.
trait Line<const FROM: usize, const TO: usize> {
    fn apply<V: Vector>(line: [V; FROM]) -> [V; TO];
}

/// `B^T d`.
struct Input;
/// `G g`.
struct Weight;
/// `A^T m`.
struct Output;

impl Line<4, 4> for Input {
    #[inline(always)]
    fn apply<V: Vector>([d0, d1, d2, d3]: [V; 4]) -> [V; 4] {
        [d0.sub(d2), d1.add(d2), d2.sub(d1), d1.sub(d3)]
    }
}

impl Line<3, 4> for Weight {
    #[inline(always)]
    fn apply<V: Vector>([g0, g1, g2]: [V; 3]) -> [V; 4] {
        let (ends, half) = (g0.add(g2), V::splat(0.5));
        [g0, ends.add(g1).mul(half), ends.sub(g1).mul(half), g2]
    }
}

impl Line<4, 2> for Output {
    #[inline(always)]
    fn apply<V: Vector>([m0, m1, m2, m3]: [V; 4]) -> [V; 2] {
        [m0.add(m1).add(m2), m1.sub(m2).sub(m3)]
    }
}

/// Transforms `FROM x FROM` values from `starts`, all `at` elements on: the columns, then the rows of the result.
///
/// # Safety
/// From every start on there are `at` and [`LANES`] elements.
#[inline(always)]
unsafe fn tile<L: Line<FROM, TO>, V: Vector, T: Element, const FROM: usize, const TO: usize>(
    starts: &[*const T],
    at: usize,
) -> [[V; TO]; TO] {
    let mut rows = [[V::splat(0.0); FROM]; TO];
    for column in 0..FROM {
        let mut line = [V::splat(0.0); FROM];
        for row in 0..FROM {
            // SAFETY: by the contract.
            line[row] = unsafe { V::load(starts[row * FROM + column].add(at)) };
        }
        let line = L::apply(line);
        for row in 0..TO {
            rows[row][column] = line[row];
        }
    }
    let mut result = [[V::splat(0.0); TO]; TO];
    for row in 0..TO {
        result[row] = L::apply(rows[row]);
    }
    result
}

/// Stores a tile, all `at` elements after `starts`.
///
/// # Safety
/// From every start on there are `at` and [`LANES`] elements.
#[inline(always)]
unsafe fn store<V: Vector, T: Element, const N: usize>(tile: [[V; N]; N], starts: &[*mut T], at: usize) {
    for row in 0..N {
        for column in 0..N {
            // SAFETY: by the contract.
            unsafe { tile[row][column].store(starts[row * N + column].add(at)) };
        }
    }
}

for_every_isa! {
    /// `B^T d B`: from a tile's pixels to its positions. As in all transforms, there are as many values of each, a multiple of
    /// [`LANES`].
    pub(super) fn input<T: Element => W, R: Rounding>(
        pixels: &Sources<'_, T, POSITIONS>,
        positions: &mut Targets<'_, W, POSITIONS>,
    ) {
        assert!(pixels.count == positions.count && pixels.count.is_multiple_of(LANES));
        for channel in (0..pixels.count).step_by(LANES) {
            // SAFETY: both have the values up to their count, a multiple of the lanes.
            unsafe { store(tile::<Input, R::Vector, T, 4, 4>(&pixels.starts, channel), &positions.starts, channel) }
        }
    }
}

for_every_isa! {
    /// `G g G^T`: from a kernel's taps to its positions.
    pub(super) fn weights<T: Element, R: Rounding>(
        taps: &Sources<'_, T, TAPS>,
        positions: &mut Targets<'_, T, POSITIONS>,
    ) {
        assert!(taps.count == positions.count && taps.count.is_multiple_of(LANES));
        for element in (0..taps.count).step_by(LANES) {
            // SAFETY: both have the values up to their count, a multiple of the lanes.
            unsafe { store(tile::<Weight, R::Vector, T, 3, 4>(&taps.starts, element), &positions.starts, element) }
        }
    }
}

for_every_isa! {
    /// `A^T m A`: from a tile's products to its outputs, finished by the epilogue.
    pub(super) fn output<T: Element, R: Rounding>(
        products: &Sources<'_, f32, POSITIONS>,
        epilogue: &TileEpilogue<'_, T, OUTPUTS>,
    ) {
        assert!(products.count == epilogue.channels() && products.count.is_multiple_of(LANES));
        for channel in (0..products.count).step_by(LANES) {
            // SAFETY: both have the values up to their count, a multiple of the lanes.
            unsafe {
                let outputs = tile::<Output, R::Vector, f32, 4, 2>(&products.starts, channel);
                epilogue.finish(outputs.as_flattened(), channel);
            }
        }
    }
}
