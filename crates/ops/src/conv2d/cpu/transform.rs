//! The linear transforms of Winograd's F(2x2, 3x3): tiles of 4x4 inputs, of 3x3 weights and of 4x4 products, each for
//! `LANES` channels at a time, first along the columns, then along the rows.
#![allow(unsafe_code)]

use std::ops::{Add, Mul, Sub};

use crate::cpu::Element;
use crate::cpu::math::for_every_isa;
pub(super) use crate::cpu::rounding::LANES;
use crate::cpu::rounding::{Plain, Rounding};

/// Inputs of a tile in each direction.
pub(super) const TILE: usize = 4;
/// Outputs of a tile in each direction.
pub(super) const OUT: usize = 2;
/// Products of a tile.
pub(super) const POSITIONS: usize = TILE * TILE;
/// Weights of a kernel.
pub(super) const TAPS: usize = 9;

/// The values of some channels at one position.
#[derive(Clone, Copy)]
struct Lanes([f32; LANES]);

impl Lanes {
    const ZERO: Self = Self([0.0; LANES]);

    #[inline(always)]
    fn load<T: Element>(values: &[T; LANES]) -> Self {
        let mut lanes = Self::ZERO;
        lanes.0.iter_mut().zip(values).for_each(|(lane, value)| *lane = value.to_f32());
        lanes
    }
}

impl Add for Lanes {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        let mut sum = self;
        sum.0.iter_mut().zip(other.0).for_each(|(lane, other)| *lane += other);
        sum
    }
}

impl Sub for Lanes {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        let mut difference = self;
        difference.0.iter_mut().zip(other.0).for_each(|(lane, other)| *lane -= other);
        difference
    }
}

impl Mul<f32> for Lanes {
    type Output = Self;

    #[inline(always)]
    fn mul(self, factor: f32) -> Self {
        Self(self.0.map(|lane| lane * factor))
    }
}

/// `B^T d`.
#[inline(always)]
fn input_line([d0, d1, d2, d3]: [Lanes; TILE]) -> [Lanes; TILE] {
    [d0 - d2, d1 + d2, d2 - d1, d1 - d3]
}

/// `G g`.
#[inline(always)]
fn weight_line([g0, g1, g2]: [Lanes; 3]) -> [Lanes; TILE] {
    let ends = g0 + g2;
    [g0, (ends + g1) * 0.5, (ends - g1) * 0.5, g2]
}

/// `A^T m`.
#[inline(always)]
fn output_line([m0, m1, m2, m3]: [Lanes; TILE]) -> [Lanes; OUT] {
    [m0 + m1 + m2, m1 - m2 - m3]
}

// The columns of a tile, then the rows of the result, through one transform. Every line is written out: the compiler
// turns loops over lanes into gathers and scatters.

/// `B^T d B`.
#[inline(always)]
fn input_tile([a, b, c, d]: [[Lanes; TILE]; TILE]) -> [[Lanes; TILE]; TILE] {
    let column = |j: usize| input_line([a[j], b[j], c[j], d[j]]);
    let [a, b, c, d] = [column(0), column(1), column(2), column(3)];
    let row = |i: usize| input_line([a[i], b[i], c[i], d[i]]);
    [row(0), row(1), row(2), row(3)]
}

/// `G g G^T`.
#[inline(always)]
fn weight_tile([a, b, c]: [[Lanes; 3]; 3]) -> [[Lanes; TILE]; TILE] {
    let column = |j: usize| weight_line([a[j], b[j], c[j]]);
    let [a, b, c] = [column(0), column(1), column(2)];
    let row = |i: usize| weight_line([a[i], b[i], c[i]]);
    [row(0), row(1), row(2), row(3)]
}

/// `A^T m A`.
#[inline(always)]
fn output_tile([a, b, c, d]: [[Lanes; TILE]; TILE]) -> [[Lanes; OUT]; OUT] {
    let column = |j: usize| output_line([a[j], b[j], c[j], d[j]]);
    let [a, b, c, d] = [column(0), column(1), column(2), column(3)];
    let row = |i: usize| output_line([a[i], b[i], c[i], d[i]]);
    [row(0), row(1)]
}

/// Loads `N x N` lanes from as many slices, at one offset.
///
/// # Safety
/// Every slice has [`LANES`] elements at the offset.
#[inline(always)]
unsafe fn load<T: Element, const N: usize>(slices: &[&[T]], at: usize) -> [[Lanes; N]; N] {
    let mut tile = [[Lanes::ZERO; N]; N];
    for (row, slices) in tile.iter_mut().zip(slices.chunks_exact(N)) {
        for (lanes, slice) in row.iter_mut().zip(slices) {
            safety_assert!(at + LANES <= slice.len());
            // SAFETY: by the contract the slice has these elements.
            *lanes = Lanes::load(unsafe { &*slice.as_ptr().add(at).cast::<[T; LANES]>() });
        }
    }
    tile
}

/// Stores `N x N` lanes into as many slices, at one offset.
///
/// # Safety
/// Every slice has [`LANES`] elements at the offset.
#[inline(always)]
unsafe fn store<T: Element, R: Rounding, const N: usize>(rows: [[Lanes; N]; N], slices: &mut [&mut [T]], at: usize) {
    for (row, slices) in rows.iter().zip(slices.chunks_exact_mut(N)) {
        for (lanes, slice) in row.iter().zip(slices) {
            safety_assert!(at + LANES <= slice.len());
            // SAFETY: by the contract the slice has these elements.
            R::round(&lanes.0, unsafe { &mut *slice.as_mut_ptr().add(at).cast::<[T; LANES]>() });
        }
    }
}

/// Panics unless all slices have the same length, a multiple of [`LANES`]. Returns the length.
#[inline(always)]
fn checked<T, U>(from: &[&[T]], to: &[&mut [U]]) -> usize {
    let count = from[0].len();
    assert!(count.is_multiple_of(LANES));
    assert!(from.iter().all(|slice| slice.len() == count) && to.iter().all(|slice| slice.len() == count));
    count
}

for_every_isa! {
    /// `B^T d B`: from a tile's pixels to its positions. All slices have the same length, a multiple of [`LANES`].
    pub(super) fn input<T: Element => W, R: Rounding>(
        pixels: &[&[T]; POSITIONS],
        positions: &mut [&mut [W]; POSITIONS],
    ) {
        for channel in (0..checked(pixels, positions)).step_by(LANES) {
            // SAFETY: the lengths of all slices have been checked.
            unsafe { store::<W, R, TILE>(input_tile(load(pixels, channel)), positions, channel) }
        }
    }
}

for_every_isa! {
    /// `G g G^T`: from a kernel's taps to its positions. All slices have the same length, a multiple of [`LANES`].
    pub(super) fn weights<T: Element, R: Rounding>(taps: &[&[T]; TAPS], positions: &mut [&mut [T]; POSITIONS]) {
        for element in (0..checked(taps, positions)).step_by(LANES) {
            // SAFETY: the lengths of all slices have been checked.
            unsafe { store::<T, R, TILE>(weight_tile(load(taps, element)), positions, element) }
        }
    }
}

for_every_isa! {
    /// `A^T m A`: from a tile's products to its outputs. All slices have the same length, a multiple of [`LANES`].
    pub(super) fn output(products: &[&[f32]; POSITIONS], outputs: &mut [&mut [f32]; OUT * OUT]) {
        for channel in (0..checked(products, outputs)).step_by(LANES) {
            // SAFETY: the lengths of all slices have been checked.
            unsafe { store::<f32, Plain, OUT>(output_tile(load(products, channel)), outputs, channel) }
        }
    }
}
