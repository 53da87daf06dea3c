//! Kernels for Advanced SIMD of 64-bit ARM. A tile is computed in strips of 6 rows and half a panel, which use 24 of the 32
//! registers.

use std::arch::aarch64::*;
use std::arch::asm;

use super::{PANEL, STRIDE};

/// Registers of half a row of a panel.
const REGISTERS: usize = PANEL / 2 / 4;

/// Loads half a row of a panel as registers of f32. Rows are counted in pairs: row `2 pair + odd`.
pub(super) trait Load {
    /// # Safety
    /// The panel has that row (with its pair, where the type is paired).
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, column: usize) -> [float32x4_t; REGISTERS];
}

/// f32 as it is.
pub(super) struct LoadF32;
/// f16, converted.
pub(super) struct LoadF16;
/// bf16 in pairs, converted: one half of each word, moved to the upper end.
pub(super) struct LoadBf16;

impl Load for LoadF32 {
    #[inline(always)]
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, column: usize) -> [float32x4_t; REGISTERS] {
        // SAFETY: the row is in the panel, PANEL values long.
        unsafe {
            let row = b.cast::<f32>().add((2 * pair + odd) * PANEL + column);
            std::array::from_fn(|i| vld1q_f32(row.add(4 * i)))
        }
    }
}

impl Load for LoadF16 {
    #[inline(always)]
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, column: usize) -> [float32x4_t; REGISTERS] {
        // SAFETY: the row is in the panel, PANEL values of two bytes long. Every CPU with Advanced SIMD converts f16.
        unsafe {
            let row = b.cast::<u16>().add((2 * pair + odd) * PANEL + column);
            std::array::from_fn(|i| {
                let wide: float32x4_t;
                asm!(
                    "fcvtl {wide:v}.4s, {half:v}.4h",
                    wide = lateout(vreg) wide,
                    half = in(vreg) vld1_u16(row.add(4 * i)),
                    options(pure, nomem, nostack, preserves_flags)
                );
                wide
            })
        }
    }
}

impl Load for LoadBf16 {
    #[inline(always)]
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, column: usize) -> [float32x4_t; REGISTERS] {
        // SAFETY: the pair of rows is in the panel, PANEL words long.
        unsafe {
            let words = b.cast::<u32>().add(pair * PANEL + column);
            std::array::from_fn(|i| {
                let words = vld1q_u32(words.add(4 * i));
                let wide = if odd == 0 { vshlq_n_u32::<16>(words) } else { vandq_u32(words, vdupq_n_u32(0xffff_0000)) };
                vreinterpretq_f32_u32(wide)
            })
        }
    }
}

/// See [`super::Run`].
///
/// # Safety
/// Asserted by [`super::Kernel::run`].
pub(super) unsafe fn run<L: Load, const ROWS: usize, const HALVES: usize>(
    depth: usize,
    a: *const u32,
    b: *const u8,
    out: *mut f32,
    stride: usize,
    first: bool,
) {
    // SAFETY: by the contract all rows of `a`, of the panel and of `out` are valid; the strips stay inside.
    unsafe { in_strips::<InF32<L>, ROWS, HALVES>(depth, a, b, out, stride, first) }
}

/// The kernel for pairs of bf16 in both operands. A dot product of pairs adds two products to each sum.
///
/// # Safety
/// Asserted by [`super::Kernel::run`]. The CPU has dot products of bf16.
pub(super) unsafe fn run_pairs<const ROWS: usize, const HALVES: usize>(
    depth: usize,
    a: *const u32,
    b: *const u8,
    out: *mut f32,
    stride: usize,
    first: bool,
) {
    // SAFETY: by the contract all rows of `a`, of the panel and of `out` are valid; the strips stay inside.
    unsafe { in_strips::<InPairs, ROWS, HALVES>(depth, a, b, out, stride, first) }
}

/// How a strip is multiplied.
trait Multiply {
    /// Adds all products of `ROWS` rows and half a panel to the sums.
    ///
    /// # Safety
    /// `depth` words of each row of `a` and the panel's rows are valid, and the CPU has the instructions.
    unsafe fn add<const ROWS: usize>(
        depth: usize,
        a: *const u32,
        b: *const u8,
        column: usize,
        sums: &mut [[float32x4_t; REGISTERS]; ROWS],
    );
}

/// Words of `a` are f32.
struct InF32<L>(L);
/// Words of `a` are pairs of bf16.
struct InPairs;

impl<L: Load> Multiply for InF32<L> {
    #[inline(always)]
    unsafe fn add<const ROWS: usize>(
        depth: usize,
        a: *const u32,
        b: *const u8,
        column: usize,
        sums: &mut [[float32x4_t; REGISTERS]; ROWS],
    ) {
        let a: *const f32 = a.cast();
        for p in 0..depth {
            // SAFETY: by the contract the panel has the row, and each row of `a` the word.
            unsafe {
                let b_row = L::half_row(b, p / 2, p % 2, column);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let a = *a.add(row * STRIDE + p);
                    for (sum, b) in sums.iter_mut().zip(b_row) {
                        *sum = vfmaq_n_f32(*sum, b, a);
                    }
                }
            }
        }
    }
}

impl Multiply for InPairs {
    #[inline(always)]
    unsafe fn add<const ROWS: usize>(
        depth: usize,
        a: *const u32,
        b: *const u8,
        column: usize,
        sums: &mut [[float32x4_t; REGISTERS]; ROWS],
    ) {
        for p in 0..depth {
            // SAFETY: by the contract the panel has the pair of rows, and each row of `a` the word. The instruction is of
            // the path that the caller has chosen.
            unsafe {
                let words = b.cast::<u32>().add(p * PANEL + column);
                let b_row: [uint32x4_t; REGISTERS] = std::array::from_fn(|i| vld1q_u32(words.add(4 * i)));
                for (row, sums) in sums.iter_mut().enumerate() {
                    let a = vdupq_n_u32(*a.add(row * STRIDE + p));
                    for (sum, b) in sums.iter_mut().zip(b_row) {
                        // The compiler has no stable function for it.
                        asm!(
                            ".arch_extension bf16",
                            "bfdot {sum:v}.4s, {a:v}.8h, {b:v}.8h",
                            sum = inout(vreg) *sum,
                            a = in(vreg) a,
                            b = in(vreg) b,
                            options(pure, nomem, nostack, preserves_flags)
                        );
                    }
                }
            }
        }
    }
}

/// # Safety
/// Asserted by [`super::Kernel::run`], and the CPU has the instructions of `M`.
#[inline(always)]
unsafe fn in_strips<M: Multiply, const ROWS: usize, const HALVES: usize>(
    depth: usize,
    a: *const u32,
    b: *const u8,
    out: *mut f32,
    stride: usize,
    first: bool,
) {
    for column in (0..HALVES).map(|half| half * PANEL / 2) {
        let mut row = 0;
        while row < ROWS {
            // SAFETY: by the contract all rows of `a`, of the panel and of `out` are valid; the strips stay inside.
            unsafe {
                let (a, out) = (a.add(row * STRIDE), out.add(row * stride + column));
                row += match ROWS - row {
                    1 => strip::<M, 1>(depth, a, b, column, out, stride, first),
                    2 => strip::<M, 2>(depth, a, b, column, out, stride, first),
                    3 => strip::<M, 3>(depth, a, b, column, out, stride, first),
                    4 => strip::<M, 4>(depth, a, b, column, out, stride, first),
                    5 => strip::<M, 5>(depth, a, b, column, out, stride, first),
                    _ => strip::<M, 6>(depth, a, b, column, out, stride, first),
                };
            }
        }
    }
}

/// `ROWS` rows times half a panel. Returns `ROWS`.
///
/// # Safety
/// See [`in_strips`].
#[inline]
unsafe fn strip<M: Multiply, const ROWS: usize>(
    depth: usize,
    a: *const u32,
    b: *const u8,
    column: usize,
    out: *mut f32,
    stride: usize,
    first: bool,
) -> usize {
    // SAFETY: by the contract all rows of `a`, of the panel and of `out` are valid.
    unsafe {
        let mut sums = [[vdupq_n_f32(0.0); REGISTERS]; ROWS];
        if !first {
            for (row, sums) in sums.iter_mut().enumerate() {
                for (i, sum) in sums.iter_mut().enumerate() {
                    *sum = vld1q_f32(out.add(row * stride + 4 * i));
                }
            }
        }
        M::add(depth, a, b, column, &mut sums);
        for (row, sums) in sums.into_iter().enumerate() {
            for (i, sum) in sums.into_iter().enumerate() {
                vst1q_f32(out.add(row * stride + 4 * i), sum);
            }
        }
    }
    ROWS
}
