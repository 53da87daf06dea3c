//! Kernels for AVX-512, with and without dot products of bytes.

use std::arch::x86_64::*;

use super::super::{PANEL, STRIDE};

/// Columns of a register.
const HALF: usize = PANEL / 2;

/// Adds the products of four unsigned and four signed bytes to each sum, with dot products of bytes: `vpdpbusd`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni")]
fn add_dots(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_dpbusd_epi32(sum, a, b)
}

/// The products without VNNI: even and odd bytes widened to 16 bits, then `vpmaddwd`, since `vpmaddubsw` saturates.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl")]
fn add_wide(sum: __m512i, a: __m512i, b: __m512i) -> __m512i {
    let (even_a, odd_a) = (_mm512_and_si512(a, _mm512_set1_epi16(0xff)), _mm512_srli_epi16::<8>(a));
    let (even_b, odd_b) = (_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(b)), _mm512_srai_epi16::<8>(b));
    let products = _mm512_add_epi32(_mm512_madd_epi16(even_a, even_b), _mm512_madd_epi16(odd_a, odd_b));
    _mm512_add_epi32(sum, products)
}

/// Defines a kernel for a set of instructions. A function for both would need the instructions of both.
macro_rules! kernel {
    ($(#[$doc:meta])* $visibility:vis $name:ident, $features:literal, $add:ident) => {
        $(#[$doc])*
        #[target_feature(enable = $features)]
        $visibility unsafe fn $name<const ROWS: usize, const HALVES: usize>(
            words: usize,
            a: *const u32,
            b: *const u8,
            out: *mut f32,
            stride: usize,
            first: bool,
        ) {
            let out: *mut i32 = out.cast();
            // SAFETY: by the contract all rows of `a`, of the panel and of `out` are valid.
            unsafe {
                let mut sums = [[_mm512_setzero_si512(); HALVES]; ROWS];
                if !first {
                    for (row, sums) in sums.iter_mut().enumerate() {
                        for (half, sum) in sums.iter_mut().enumerate() {
                            *sum = _mm512_loadu_si512(out.add(row * stride + half * HALF).cast());
                        }
                    }
                }
                for p in 0..words {
                    let row_of_b = b.cast::<u32>().add(p * PANEL);
                    let mut b_row = [_mm512_setzero_si512(); HALVES];
                    for (half, b_row) in b_row.iter_mut().enumerate() {
                        *b_row = _mm512_loadu_si512(row_of_b.add(half * HALF).cast());
                    }
                    for (row, sums) in sums.iter_mut().enumerate() {
                        let a = _mm512_set1_epi32(*a.add(row * STRIDE + p) as i32);
                        for (sum, b) in sums.iter_mut().zip(b_row) {
                            *sum = $add(*sum, a, b);
                        }
                    }
                }
                for (row, sums) in sums.iter().enumerate() {
                    for (half, sum) in sums.iter().enumerate() {
                        _mm512_storeu_si512(out.add(row * stride + half * HALF).cast(), *sum);
                    }
                }
            }
        }
    };
}

kernel! {
    /// See [`super::super::Run`].
    ///
    /// # Safety
    /// Asserted by [`super::ByteKernel::run`]. The CPU has AVX-512 F, BW, VL and VNNI.
    pub(super) run_dots, "avx512f,avx512bw,avx512vl,avx512vnni", add_dots
}

kernel! {
    /// See [`super::super::Run`].
    ///
    /// # Safety
    /// Asserted by [`super::ByteKernel::run`]. The CPU has AVX-512 F, BW and VL.
    pub(super) run_wide, "avx512f,avx512bw,avx512vl", add_wide
}
