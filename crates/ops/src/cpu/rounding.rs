//! Operations that instruction paths round differently: multiply-add, and the conversion of f32 vectors to elements.
#![allow(unsafe_code)]

use super::Element;
use super::vector::{Array, Vector};
#[cfg(target_arch = "x86_64")]
use super::vector::{Avx2Vector, Avx512Vector};

/// Values that are rounded together.
pub(crate) const LANES: usize = 16;

/// A way to round, to the nearest, ties to even.
pub(crate) trait Rounding {
    /// [`LANES`] values in the registers of the path.
    type Vector: Vector;

    /// `a b + c`, rounded once or twice.
    fn mul_add(a: f32, b: f32, c: f32) -> f32;

    /// Rounds [`LANES`] values into the first elements of `out`. Panics where it is shorter.
    fn round<T: Element>(values: &[f32; LANES], out: &mut [T]);
}

/// Plain arithmetic: `a b` is rounded, elements are [`Element::from_f32`].
pub(crate) struct Plain;

impl Rounding for Plain {
    type Vector = Array;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a * b + c
    }

    #[inline(always)]
    fn round<T: Element>(values: &[f32; LANES], out: &mut [T]) {
        out[..LANES].iter_mut().zip(values).for_each(|(out, value)| *out = T::from_f32(*value));
    }
}

/// Fused multiply-add in registers of a path: only functions that are compiled for the path use it. Elsewhere each operation
/// would be a call of the C library.
macro_rules! fused {
    ($(#[$doc:meta])* $name:ident, $vector:ty) => {
        $(#[$doc])*
        pub(crate) struct $name;

        impl Rounding for $name {
            type Vector = $vector;

            #[inline(always)]
            fn mul_add(a: f32, b: f32, c: f32) -> f32 {
                a.mul_add(b, c)
            }

            #[inline(always)]
            fn round<T: Element>(values: &[f32; LANES], out: &mut [T]) {
                Plain::round(values, out);
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
fused!(
    /// AVX2 with FMA.
    Avx2,
    Avx2Vector
);
#[cfg(target_arch = "x86_64")]
fused!(
    /// AVX-512.
    Avx512,
    Avx512Vector<false>
);
#[cfg(target_arch = "aarch64")]
fused!(
    /// Every CPU of 64-bit ARM has fused multiply-add.
    Fused,
    Array
);

/// AVX-512 and AVX512-BF16's conversion to bf16, which flushes subnormal numbers to zero. Only functions that are
/// compiled for that path use it.
#[cfg(target_arch = "x86_64")]
pub(crate) struct Avx512Bf16;

#[cfg(target_arch = "x86_64")]
impl Rounding for Avx512Bf16 {
    type Vector = Avx512Vector<true>;

    #[inline(always)]
    fn mul_add(a: f32, b: f32, c: f32) -> f32 {
        a.mul_add(b, c)
    }

    #[inline(always)]
    fn round<T: Element>(values: &[f32; LANES], out: &mut [T]) {
        use std::arch::x86_64::{__m256i, _mm256_storeu_si256, _mm512_cvtneps_pbh, _mm512_loadu_ps};
        if T::DTYPE != candle_core::DType::BF16 {
            return Plain::round(values, out);
        }
        let out = &mut out[..LANES];
        // SAFETY: `out` holds 16 elements of two bytes, `T` being bf16, and `values` 16 of four bytes. This path is
        // chosen only where the CPU has the instruction.
        unsafe {
            let rounded: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(_mm512_loadu_ps(values.as_ptr())));
            _mm256_storeu_si256(out.as_mut_ptr().cast(), rounded);
        }
    }
}
