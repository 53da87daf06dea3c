//! Kernels for AVX2 with FMA. A tile is computed in strips of 6 rows and half a panel, which use 12 of
//! the 16 registers.

use std::arch::x86_64::*;

use super::{PANEL, STRIDE};

/// Loads half a row of a panel as two registers of f32. Rows are counted in pairs: row `2 pair + odd`.
pub(super) trait Load {
    /// # Safety
    /// The panel has that row (with its pair, where the type is paired), and the CPU has AVX2 and F16C.
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, column: usize) -> [__m256; 2];
}

/// f32 as it is.
pub(super) struct LoadF32;
/// f16, converted.
pub(super) struct LoadF16;
/// bf16 in pairs, converted: one half of each word, moved to the upper end.
pub(super) struct LoadBf16;

impl Load for LoadF32 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, column: usize) -> [__m256; 2] {
        // SAFETY: the row is in the panel, PANEL values long.
        unsafe {
            let row = b.cast::<f32>().add((2 * pair + odd) * PANEL + column);
            [_mm256_loadu_ps(row), _mm256_loadu_ps(row.add(8))]
        }
    }
}

impl Load for LoadF16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, column: usize) -> [__m256; 2] {
        // SAFETY: the row is in the panel, PANEL values of two bytes long.
        unsafe {
            let row = b.cast::<u16>().add((2 * pair + odd) * PANEL + column);
            [_mm256_cvtph_ps(_mm_loadu_si128(row.cast())), _mm256_cvtph_ps(_mm_loadu_si128(row.add(8).cast()))]
        }
    }
}

impl Load for LoadBf16 {
    #[inline]
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn half_row(b: *const u8, pair: usize, odd: usize, column: usize) -> [__m256; 2] {
        // SAFETY: the pair of rows is in the panel, PANEL words long.
        unsafe {
            let words = b.cast::<u32>().add(pair * PANEL + column);
            let (left, right) = (_mm256_loadu_si256(words.cast()), _mm256_loadu_si256(words.add(8).cast()));
            [widened(left, odd), widened(right, odd)]
        }
    }
}

/// The lower (`odd` 0) or the upper bf16 of each word. A function, since `map` of arrays has no AVX2 and calls its closure.
#[inline]
#[target_feature(enable = "avx2")]
fn widened(words: __m256i, odd: usize) -> __m256 {
    let wide = match odd {
        0 => _mm256_slli_epi32::<16>(words),
        _ => _mm256_and_si256(words, _mm256_set1_epi32(0xffff_0000_u32 as i32)),
    };
    _mm256_castsi256_ps(wide)
}

/// See [`super::Run`].
///
/// # Safety
/// Asserted by [`super::Kernel::run`]. The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<L: Load, const ROWS: usize, const HALVES: usize>(
    depth: usize,
    a: *const u32,
    b: *const u8,
    out: *mut f32,
    stride: usize,
    first: bool,
) {
    let a: *const f32 = a.cast();
    for column in (0..HALVES).map(|half| half * PANEL / 2) {
        let mut row = 0;
        while row < ROWS {
            // SAFETY: by the contract all rows of `a`, of the panel and of `out` are valid; the strips stay inside.
            unsafe {
                let (a, out) = (a.add(row * STRIDE), out.add(row * stride + column));
                row += match ROWS - row {
                    1 => strip::<L, 1>(depth, a, b, column, out, stride, first),
                    2 => strip::<L, 2>(depth, a, b, column, out, stride, first),
                    3 => strip::<L, 3>(depth, a, b, column, out, stride, first),
                    4 => strip::<L, 4>(depth, a, b, column, out, stride, first),
                    5 => strip::<L, 5>(depth, a, b, column, out, stride, first),
                    _ => strip::<L, 6>(depth, a, b, column, out, stride, first),
                };
            }
        }
    }
}

/// `ROWS` rows times half a panel. Returns `ROWS`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn strip<L: Load, const ROWS: usize>(
    depth: usize,
    a: *const f32,
    b: *const u8,
    column: usize,
    out: *mut f32,
    stride: usize,
    first: bool,
) -> usize {
    // SAFETY: by the contract all rows of `a`, of the panel and of `out` are valid.
    unsafe {
        let mut sums = [[_mm256_setzero_ps(); 2]; ROWS];
        if !first {
            for (row, sums) in sums.iter_mut().enumerate() {
                *sums = [_mm256_loadu_ps(out.add(row * stride)), _mm256_loadu_ps(out.add(row * stride + 8))];
            }
        }
        // A macro instead of a closure: a closure that is not inlined would keep the sums in memory.
        macro_rules! step {
            ($pair:expr, $odd:literal) => {
                let [left, right] = L::half_row(b, $pair, $odd, column);
                for (row, sums) in sums.iter_mut().enumerate() {
                    let a = _mm256_set1_ps(*a.add(row * STRIDE + 2 * ($pair) + $odd));
                    sums[0] = _mm256_fmadd_ps(a, left, sums[0]);
                    sums[1] = _mm256_fmadd_ps(a, right, sums[1]);
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
        for (row, [left, right]) in sums.into_iter().enumerate() {
            _mm256_storeu_ps(out.add(row * stride), left);
            _mm256_storeu_ps(out.add(row * stride + 8), right);
        }
    }
    ROWS
}
