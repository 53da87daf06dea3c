//! The kernel for AVX2, in strips of 4 rows and half a panel: 8 of the 16 registers are sums.
//!
//! `vpmaddubsw` adds two products in 16 bits and saturates, so bytes are widened to 16 bits first: even and odd bytes of a
//! word apart, each times its partner and summed in 32 bits by `vpmaddwd`.

use std::arch::x86_64::*;

use super::super::{PANEL, STRIDE};

/// See [`super::super::Run`].
///
/// # Safety
/// Asserted by [`super::ByteKernel::run`]. The CPU has AVX2.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn run<const ROWS: usize, const HALVES: usize>(
    words: usize,
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
                let (a, out) = (a.add(row * STRIDE), out.add(row * stride + column).cast());
                let b = b.cast::<u32>().add(column);
                row += match ROWS - row {
                    1 => strip::<1>(words, a, b, out, stride, first),
                    2 => strip::<2>(words, a, b, out, stride, first),
                    3 => strip::<3>(words, a, b, out, stride, first),
                    _ => strip::<4>(words, a, b, out, stride, first),
                };
            }
        }
    }
}

/// `ROWS` rows times half a panel. Returns `ROWS`.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn strip<const ROWS: usize>(
    words: usize,
    a: *const u32,
    b: *const u32,
    out: *mut i32,
    stride: usize,
    first: bool,
) -> usize {
    // SAFETY: by the contract all rows of `a`, of the panel and of `out` are valid.
    unsafe {
        let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
        if !first {
            for (row, sums) in sums.iter_mut().enumerate() {
                let out = out.add(row * stride);
                *sums = [_mm256_loadu_si256(out.cast()), _mm256_loadu_si256(out.add(8).cast())];
            }
        }
        let low = _mm256_set1_epi16(0xff);
        for p in 0..words {
            let row_of_b = b.add(p * PANEL);
            // Not by `map`: it has no AVX2, and calls its closure for each word.
            let (left, right) = (_mm256_loadu_si256(row_of_b.cast()), _mm256_loadu_si256(row_of_b.add(8).cast()));
            let even = [even_bytes(left), even_bytes(right)];
            let odd = [_mm256_srai_epi16::<8>(left), _mm256_srai_epi16::<8>(right)];
            for (row, sums) in sums.iter_mut().enumerate() {
                let a = _mm256_set1_epi32(*a.add(row * STRIDE + p) as i32);
                let (even_a, odd_a) = (_mm256_and_si256(a, low), _mm256_srli_epi16::<8>(a));
                for (half, sum) in sums.iter_mut().enumerate() {
                    let evens = _mm256_madd_epi16(even_a, even[half]);
                    let odds = _mm256_madd_epi16(odd_a, odd[half]);
                    *sum = _mm256_add_epi32(*sum, _mm256_add_epi32(evens, odds));
                }
            }
        }
        for (row, [left, right]) in sums.into_iter().enumerate() {
            let out = out.add(row * stride);
            _mm256_storeu_si256(out.cast(), left);
            _mm256_storeu_si256(out.add(8).cast(), right);
        }
    }
    ROWS
}

/// The even bytes in 16 bits.
#[inline]
#[target_feature(enable = "avx2")]
fn even_bytes(words: __m256i) -> __m256i {
    _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(words))
}
