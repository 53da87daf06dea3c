//! Kernels for AVX-512.

use std::arch::x86_64::*;

use super::{PANEL, STRIDE};

/// Columns of a register.
const HALF: usize = PANEL / 2;

/// Loads half a row of a panel as a register of f32. Rows are counted in pairs: row `2 pair + odd`.
pub(super) trait Load {
    /// # Safety
    /// The panel has that row (with its pair, where the type is paired), and the CPU has AVX-512 F, BW and VL.
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, half: usize) -> __m512;
}

/// f32 as it is.
pub(super) struct LoadF32;
/// f16, converted.
pub(super) struct LoadF16;
/// bf16 in pairs, converted: one half of each word, moved to the upper end.
pub(super) struct LoadBf16;

impl Load for LoadF32 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, half: usize) -> __m512 {
        // SAFETY: the row is in the panel, PANEL values long.
        unsafe { _mm512_loadu_ps(b.cast::<f32>().add((2 * pair + odd) * PANEL + half * HALF)) }
    }
}

impl Load for LoadF16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, half: usize) -> __m512 {
        // SAFETY: the row is in the panel, PANEL values of two bytes long.
        unsafe {
            _mm512_cvtph_ps(_mm256_loadu_si256(b.cast::<u16>().add((2 * pair + odd) * PANEL + half * HALF).cast()))
        }
    }
}

impl Load for LoadBf16 {
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, half: usize) -> __m512 {
        // SAFETY: the pair of rows is in the panel, PANEL words long.
        unsafe {
            let words = _mm512_loadu_si512(b.cast::<u32>().add(pair * PANEL + half * HALF).cast());
            let wide = if odd == 0 {
                _mm512_slli_epi32::<16>(words)
            } else {
                _mm512_and_si512(words, _mm512_set1_epi32(0xffff_0000_u32 as i32))
            };
            _mm512_castsi512_ps(wide)
        }
    }
}

/// See [`super::Run`].
///
/// # Safety
/// Asserted by [`super::Kernel::run`]. The CPU has AVX-512 F, BW and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
pub(super) unsafe fn run<L: Load, const ROWS: usize, const HALVES: usize>(
    depth: usize,
    a: *const u32,
    b: *const u8,
    out: *mut f32,
    stride: usize,
    first: bool,
) {
    // SAFETY: by the contract all rows of `a`, of the panel and of `out` are valid.
    unsafe {
        let a: *const f32 = a.cast();
        let mut sums = start::<ROWS, HALVES>(out, stride, first);
        // A macro instead of a closure: a closure that is not inlined would keep the sums in memory.
        macro_rules! step {
            ($pair:expr, $odd:literal) => {
                let mut b_row = [_mm512_setzero_ps(); HALVES];
                for (half, b_row) in b_row.iter_mut().enumerate() {
                    *b_row = L::half_row(b, $pair, $odd, half);
                }
                for (row, sums) in sums.iter_mut().enumerate() {
                    let a = _mm512_set1_ps(*a.add(row * STRIDE + 2 * ($pair) + $odd));
                    for (sum, b) in sums.iter_mut().zip(b_row) {
                        *sum = _mm512_fmadd_ps(a, b, *sum);
                    }
                }
            };
        }
        for pair in 0..depth / 2 {
            step!(pair, 0);
            step!(pair, 1);
        }
        if depth % 2 == 1 {
            step!(depth / 2, 0);
        }
        store::<ROWS, HALVES>(out, stride, &sums);
    }
}

/// The kernel for pairs of bf16 in both operands. A dot product of pairs adds two products to each sum.
///
/// # Safety
/// Asserted by [`super::Kernel::run`]. The CPU has AVX512-BF16 too.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512bf16")]
pub(super) unsafe fn run_pairs<const ROWS: usize, const HALVES: usize>(
    depth: usize,
    a: *const u32,
    b: *const u8,
    out: *mut f32,
    stride: usize,
    first: bool,
) {
    // SAFETY: by the contract all rows of `a`, of the panel and of `out` are valid; vectors of one size are plain bits.
    unsafe {
        let mut sums = start::<ROWS, HALVES>(out, stride, first);
        for p in 0..depth {
            let words = b.cast::<u32>().add(p * PANEL);
            let mut b_row = [_mm512_setzero_si512(); HALVES];
            for (half, b_row) in b_row.iter_mut().enumerate() {
                *b_row = _mm512_loadu_si512(words.add(half * HALF).cast());
            }
            for (row, sums) in sums.iter_mut().enumerate() {
                let a: __m512bh = std::mem::transmute(_mm512_set1_epi32(*a.add(row * STRIDE + p) as i32));
                for (sum, b) in sums.iter_mut().zip(b_row) {
                    *sum = _mm512_dpbf16_ps(*sum, a, std::mem::transmute::<__m512i, __m512bh>(b));
                }
            }
        }
        store::<ROWS, HALVES>(out, stride, &sums);
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn start<const ROWS: usize, const HALVES: usize>(
    out: *const f32,
    stride: usize,
    first: bool,
) -> [[__m512; HALVES]; ROWS] {
    let mut sums = [[_mm512_setzero_ps(); HALVES]; ROWS];
    if !first {
        for (row, sums) in sums.iter_mut().enumerate() {
            for (half, sum) in sums.iter_mut().enumerate() {
                // SAFETY: by the contract each row of `out` has PANEL values.
                *sum = unsafe { _mm512_loadu_ps(out.add(row * stride + half * HALF)) };
            }
        }
    }
    sums
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
unsafe fn store<const ROWS: usize, const HALVES: usize>(out: *mut f32, stride: usize, sums: &[[__m512; HALVES]; ROWS]) {
    for (row, sums) in sums.iter().enumerate() {
        for (half, sum) in sums.iter().enumerate() {
            // SAFETY: by the contract each row of `out` has PANEL values.
            unsafe { _mm512_storeu_ps(out.add(row * stride + half * HALF), *sum) };
        }
    }
}
