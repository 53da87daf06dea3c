//! The linear transforms of Winograd's F(2x2, 3x3) and F(4x4, 3x3): tiles of inputs, of weights and of products, each for
//! `LANES` channels at a time, first along the columns, then along the rows. The values of a tile stay in registers where they fit,
//! and the outputs are finished there.
//!
//! F(4x4, 3x3) evaluates polynomials at 0, ±5/8, ±3/2 and infinity. The usual points 0, ±1, ±2 have integers for constants and
//! twice the error (`tests.rs` bounds it).
#![allow(unsafe_code)]

use std::marker::PhantomData;

use super::epilogue::TileEpilogue;
use crate::cpu::math::for_every_isa;
pub(super) use crate::cpu::rounding::LANES;
use crate::cpu::vector::Vector;
use crate::cpu::{Element, Operand};

/// The most products of a tile, and the most inputs.
pub(super) const MOST_POSITIONS: usize = 36;
/// The most outputs of a tile.
pub(super) const MOST_OUTPUTS: usize = 16;
/// Weights of a kernel.
pub(super) const TAPS: usize = 9;

/// The size of tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TileSize {
    /// F(2x2, 3x3).
    Two,
    /// F(4x4, 3x3).
    Four,
}

impl TileSize {
    /// Outputs of a tile in each direction.
    pub(super) fn out(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// Inputs of a tile in each direction.
    pub(super) fn inputs(self) -> usize {
        self.out() + 2
    }

    /// Products of a tile.
    pub(super) fn positions(self) -> usize {
        self.inputs() * self.inputs()
    }

    /// `B^T d B`: from a tile's pixels to its positions. As in all transforms, there are as many values of each, a multiple of
    /// [`LANES`].
    pub(super) fn input<T: Element, W: Operand<T>>(self, pixels: &Sources<'_, T>, positions: &mut Targets<'_, W>) {
        input(self, pixels, positions);
    }

    /// `G g G^T`: from a kernel's taps to its positions.
    pub(super) fn weights<W: Element>(self, taps: &Sources<'_, W>, positions: &mut Targets<'_, W>) {
        weights(self, taps, positions);
    }

    /// `A^T m A`: from a tile's products to its outputs, finished by the epilogue.
    pub(super) fn output<T: Element>(self, products: &Sources<'_, f32>, epilogue: &TileEpilogue<'_, T, MOST_OUTPUTS>) {
        output(self, products, epilogue);
    }
}

/// Slices of one length that are read together. Pointers without lengths: the compiler compares lengths in vectors, which wait
/// for the stores that made the slices.
pub(super) struct Sources<'a, T> {
    starts: [*const T; MOST_POSITIONS],
    /// How many there are.
    slices: usize,
    count: usize,
    lifetime: PhantomData<&'a [T]>,
}

impl<'a, T> Sources<'a, T> {
    /// The first `count` values of `slice(0)` to `slice(slices - 1)`. Panics if one is shorter.
    pub(super) fn new(slices: usize, count: usize, slice: impl Fn(usize) -> &'a [T]) -> Self {
        let mut starts = [std::ptr::null(); MOST_POSITIONS];
        for (i, start) in starts[..slices].iter_mut().enumerate() {
            *start = slice(i)[..count].as_ptr();
        }
        Self { starts, slices, count, lifetime: PhantomData }
    }

    /// The first `count` values from `first` on, and from the pixels of a square of `side` after it, which are a pixel and a row of
    /// pixels apart. Panics where the last one is not inside of `values`.
    pub(super) fn inside(side: usize, count: usize, values: &'a [T], first: usize, [row, pixel]: [usize; 2]) -> Self {
        let values = &values[first..][..(side - 1) * (row + pixel) + count];
        let mut starts = [std::ptr::null(); MOST_POSITIONS];
        for (i, starts) in starts[..side * side].chunks_exact_mut(side).enumerate() {
            for (j, start) in starts.iter_mut().enumerate() {
                // SAFETY: no pixel is after the last one.
                *start = unsafe { values.as_ptr().add(i * row + j * pixel) };
            }
        }
        Self { starts, slices: side * side, count, lifetime: PhantomData }
    }
}

/// Slices of one length that are written together.
pub(super) struct Targets<'a, T> {
    starts: [*mut T; MOST_POSITIONS],
    /// How many there are.
    slices: usize,
    count: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<'a, T> Targets<'a, T> {
    /// The first `count` values of each of so many slices. Panics if there are fewer, or if one is shorter.
    pub(super) fn new(slices: usize, count: usize, mut targets: impl Iterator<Item = &'a mut [T]>) -> Self {
        let mut starts = [std::ptr::null_mut(); MOST_POSITIONS];
        for start in &mut starts[..slices] {
            *start = targets.next().unwrap_or_default()[..count].as_mut_ptr();
        }
        Self { starts, slices, count, lifetime: PhantomData }
    }

    /// Some of these values.
    pub(super) fn part(&mut self, values: std::ops::Range<usize>) -> Targets<'_, T> {
        assert!(values.start <= values.end && values.end <= self.count);
        let mut starts = self.starts;
        for start in &mut starts[..self.slices] {
            // SAFETY: the range is inside of the values.
            *start = unsafe { start.add(values.start) };
        }
        Targets { starts, slices: self.slices, count: values.len(), lifetime: PhantomData }
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

// F(2, 3): polynomials at 0, 1, -1 and infinity.

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

/// `factor x + addend`.
#[inline(always)]
fn times_plus<V: Vector>(x: V, factor: f32, addend: V) -> V {
    x.mul_add(V::splat(factor), addend)
}

// F(4, 3): polynomials at 0, A, -A, B, -B and infinity. Every constant of inputs and outputs is exact.

const A: f32 = 0.625;
const B: f32 = 1.5;
const A2: f32 = A * A;
const B2: f32 = B * B;

impl Line<6, 6> for Input {
    /// The rows of `B^T` are the coefficients of `(x^2 - A^2) (x^2 - B^2)`, `x (x ± A) (x^2 - B^2)`,
    /// `x (x ± B) (x^2 - A^2)` and `x (x^2 - A^2) (x^2 - B^2)`.
    #[inline(always)]
    fn apply<V: Vector>([d0, d1, d2, d3, d4, d5]: [V; 6]) -> [V; 6] {
        let (even_a, odd_a) = (times_plus(d2, -B2, d4), times_plus(d1, -B2, d3).mul(V::splat(A)));
        let (even_b, odd_b) = (times_plus(d2, -A2, d4), times_plus(d1, -A2, d3).mul(V::splat(B)));
        [
            times_plus(d0, A2 * B2, times_plus(d2, -A2 - B2, d4)),
            even_a.add(odd_a),
            even_a.sub(odd_a),
            even_b.add(odd_b),
            even_b.sub(odd_b),
            times_plus(d1, A2 * B2, times_plus(d3, -A2 - B2, d5)),
        ]
    }
}

impl Line<3, 6> for Weight {
    /// The rows of `G` are the powers of a point, divided by the product of its differences to the other points.
    #[inline(always)]
    fn apply<V: Vector>([g0, g1, g2]: [V; 3]) -> [V; 6] {
        const BY_A: f32 = 1.0 / (2.0 * A2 * (A2 - B2));
        const BY_B: f32 = 1.0 / (2.0 * B2 * (B2 - A2));
        let (even_a, odd_a) = (times_plus(g2, A2, g0).mul(V::splat(BY_A)), g1.mul(V::splat(A * BY_A)));
        let (even_b, odd_b) = (times_plus(g2, B2, g0).mul(V::splat(BY_B)), g1.mul(V::splat(B * BY_B)));
        let first = g0.mul(V::splat(1.0 / (A2 * B2)));
        [first, even_a.add(odd_a), even_a.sub(odd_a), even_b.add(odd_b), even_b.sub(odd_b), g2]
    }
}

impl Line<6, 4> for Output {
    /// The columns of `A^T` are the powers of a point.
    #[inline(always)]
    fn apply<V: Vector>([m0, m1, m2, m3, m4, m5]: [V; 6]) -> [V; 4] {
        let (even_a, odd_a) = (m1.add(m2), m1.sub(m2));
        let (even_b, odd_b) = (m3.add(m4), m3.sub(m4));
        [
            m0.add(even_a).add(even_b),
            times_plus(odd_a, A, odd_b.mul(V::splat(B))),
            times_plus(even_a, A2, even_b.mul(V::splat(B2))),
            times_plus(odd_a, A * A2, times_plus(odd_b, B * B2, m5)),
        ]
    }
}

/// Transforms `FROM x FROM` values from `starts`, all `at` elements on: the columns, then the rows of the result, each of which is
/// given on as soon as it is computed, so that its registers are free again.
///
/// # Safety
/// From every start on there are `at` and [`LANES`] elements.
#[inline(always)]
unsafe fn tile<L: Line<FROM, TO>, V: Vector, T: Element, const FROM: usize, const TO: usize>(
    starts: &[*const T],
    at: usize,
    mut row_done: impl FnMut(usize, [V; TO]),
) {
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
    for (row, line) in rows.into_iter().enumerate() {
        row_done(row, L::apply(line));
    }
}

/// Transforms all values. Panics where the numbers of slices and values do not fit.
#[inline(always)]
fn transform<L: Line<FROM, TO>, V: Vector, T: Element, U: Element, const FROM: usize, const TO: usize>(
    from: &Sources<'_, T>,
    to: &mut Targets<'_, U>,
) {
    assert!((from.slices, to.slices) == (FROM * FROM, TO * TO));
    assert!(from.count == to.count && from.count.is_multiple_of(LANES));
    for at in (0..from.count).step_by(LANES) {
        // SAFETY: both have the values up to their count, a multiple of the lanes.
        unsafe {
            tile::<L, V, T, FROM, TO>(&from.starts, at, |row, line| {
                for (value, start) in line.into_iter().zip(&to.starts[row * TO..]) {
                    value.store(start.add(at));
                }
            });
        }
    }
}

/// Transforms and finishes all products. Panics where the numbers of slices and values do not fit.
#[inline(always)]
fn finish<V: Vector, T: Element, const FROM: usize, const TO: usize>(
    products: &Sources<'_, f32>,
    epilogue: &TileEpilogue<'_, T, MOST_OUTPUTS>,
) where
    Output: Line<FROM, TO>,
{
    assert!(products.slices == FROM * FROM);
    assert!(products.count == epilogue.channels() && products.count.is_multiple_of(LANES));
    for channel in (0..products.count).step_by(LANES) {
        // SAFETY: both have the values up to their count, a multiple of the lanes.
        unsafe {
            tile::<Output, V, f32, FROM, TO>(&products.starts, channel, |row, line| {
                epilogue.finish(&line, row * TO, channel);
            });
        }
    }
}

for_every_isa! {
    fn input<T: Element => W, R: Rounding>(size: TileSize, pixels: &Sources<'_, T>, positions: &mut Targets<'_, W>) {
        match size {
            TileSize::Two => transform::<Input, R::Vector, T, W, 4, 4>(pixels, positions),
            TileSize::Four => transform::<Input, R::Vector, T, W, 6, 6>(pixels, positions),
        }
    }
}

for_every_isa! {
    fn weights<T: Element, R: Rounding>(size: TileSize, taps: &Sources<'_, T>, positions: &mut Targets<'_, T>) {
        match size {
            TileSize::Two => transform::<Weight, R::Vector, T, T, 3, 4>(taps, positions),
            TileSize::Four => transform::<Weight, R::Vector, T, T, 3, 6>(taps, positions),
        }
    }
}

for_every_isa! {
    fn output<T: Element, R: Rounding>(
        size: TileSize,
        products: &Sources<'_, f32>,
        epilogue: &TileEpilogue<'_, T, MOST_OUTPUTS>,
    ) {
        match size {
            TileSize::Two => finish::<R::Vector, T, 4, 2>(products, epilogue),
            TileSize::Four => finish::<R::Vector, T, 6, 4>(products, epilogue),
        }
    }
}
