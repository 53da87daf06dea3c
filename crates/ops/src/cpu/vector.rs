//! [`LANES`] values of f32 in the registers of an instruction path. Loops over arrays of values are vectorized too, but arrays of
//! such arrays stay in memory; a tile of vectors stays in registers.
#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

#[cfg(target_arch = "x86_64")]
use candle_core::DType;

use super::Element;
use super::rounding::LANES;

/// Values that are added and multiplied lane by lane. Every operation has the bits of the scalar one of its path. Implementations
/// with registers are used only in functions that are compiled for their path.
pub(crate) trait Vector: Copy {
    /// One value in all lanes.
    fn splat(value: f32) -> Self;

    /// Widens [`LANES`] elements.
    ///
    /// # Safety
    /// `from` points to as many elements.
    unsafe fn load<T: Element>(from: *const T) -> Self;

    /// Rounds to [`LANES`] elements, to the nearest, ties to even.
    ///
    /// # Safety
    /// `to` points to as many elements.
    unsafe fn store<T: Element>(self, to: *mut T);

    fn add(self, other: Self) -> Self;

    fn sub(self, other: Self) -> Self;

    fn mul(self, other: Self) -> Self;

    /// `self factor + addend`, rounded once where the registers have a fused operation, else twice.
    fn mul_add(self, factor: Self, addend: Self) -> Self;

    /// Lanes that are not larger than 0, multiplied by `slope`.
    fn with_slope(self, slope: Self) -> Self;
}

/// An array.
#[derive(Clone, Copy)]
pub(crate) struct Array([f32; LANES]);

impl Array {
    #[inline(always)]
    fn zip(self, other: Self, operation: impl Fn(f32, f32) -> f32) -> Self {
        let mut result = self;
        for i in 0..LANES {
            result.0[i] = operation(self.0[i], other.0[i]);
        }
        result
    }
}

impl Vector for Array {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    unsafe fn load<T: Element>(from: *const T) -> Self {
        // SAFETY: by the contract there are as many elements.
        let from = unsafe { &*from.cast::<[T; LANES]>() };
        let mut result = Self([0.0; LANES]);
        result.0.iter_mut().zip(from).for_each(|(lane, value)| *lane = value.to_f32());
        result
    }

    #[inline(always)]
    unsafe fn store<T: Element>(self, to: *mut T) {
        // SAFETY: by the contract there are as many elements.
        let to = unsafe { &mut *to.cast::<[T; LANES]>() };
        to.iter_mut().zip(self.0).for_each(|(value, lane)| *value = T::from_f32(lane));
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.zip(other, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        self.zip(other, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        self.zip(other, |a, b| a * b)
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        self.mul(factor).add(addend)
    }

    #[inline(always)]
    fn with_slope(self, slope: Self) -> Self {
        self.zip(slope, |value, slope| if value > 0.0 { value } else { value * slope })
    }
}

/// A register of AVX-512. `BF16`: rounds to bf16 by AVX512-BF16's conversion, which flushes subnormal numbers to zero.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx512Vector<const BF16: bool>(__m512);

// SAFETY (of every block below): the type is used only in functions that are compiled for AVX-512, which run only where the CPU
// has it; loads and stores are within the elements of the contract, without alignment.
#[cfg(target_arch = "x86_64")]
impl<const BF16: bool> Vector for Avx512Vector<BF16> {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    unsafe fn load<T: Element>(from: *const T) -> Self {
        // SAFETY: see above.
        unsafe {
            match T::DTYPE {
                DType::F32 => Self(_mm512_loadu_ps(from.cast())),
                DType::BF16 => {
                    let words = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
                    Self(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(words)))
                }
                DType::F16 => Self(_mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))),
                _ => Self(_mm512_loadu_ps(Array::load(from).0.as_ptr())),
            }
        }
    }

    #[inline(always)]
    unsafe fn store<T: Element>(self, to: *mut T) {
        // SAFETY: see above.
        unsafe {
            match T::DTYPE {
                DType::F32 => _mm512_storeu_ps(to.cast(), self.0),
                DType::BF16 if BF16 => {
                    let rounded: __m256i = std::mem::transmute(_mm512_cvtneps_pbh(self.0));
                    _mm256_storeu_si256(to.cast(), rounded);
                }
                DType::F16 => _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(self.0)),
                _ => {
                    let mut lanes = [0f32; LANES];
                    _mm512_storeu_ps(lanes.as_mut_ptr(), self.0);
                    Array(lanes).store(to);
                }
            }
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_add_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_sub_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_mul_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: see above.
        Self(unsafe { _mm512_fmadd_ps(self.0, factor.0, addend.0) })
    }

    #[inline(always)]
    fn with_slope(self, slope: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let positive = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, _mm512_setzero_ps());
            Self(_mm512_mask_blend_ps(positive, _mm512_mul_ps(self.0, slope.0), self.0))
        }
    }
}

/// Two registers of AVX2.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub(crate) struct Avx2Vector(__m256, __m256);

// SAFETY (of every block below): the type is used only in functions that are compiled for AVX2 and FMA, which run only where the
// CPU has them; loads and stores are within the elements of the contract, without alignment.
#[cfg(target_arch = "x86_64")]
impl Vector for Avx2Vector {
    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_set1_ps(value), _mm256_set1_ps(value)) }
    }

    #[inline(always)]
    unsafe fn load<T: Element>(from: *const T) -> Self {
        // SAFETY: see above.
        unsafe {
            match T::DTYPE {
                DType::F32 => {
                    let from: *const f32 = from.cast();
                    Self(_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(LANES / 2)))
                }
                DType::BF16 => {
                    let from: *const u16 = from.cast();
                    let low = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast()));
                    let high = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.add(LANES / 2).cast()));
                    let widen = |words| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(words));
                    Self(widen(low), widen(high))
                }
                _ => {
                    let lanes = Array::load(from).0;
                    Self(_mm256_loadu_ps(lanes.as_ptr()), _mm256_loadu_ps(lanes.as_ptr().add(LANES / 2)))
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn store<T: Element>(self, to: *mut T) {
        let mut lanes = [0f32; LANES];
        let direct = T::DTYPE == DType::F32;
        let out: *mut f32 = if direct { to.cast() } else { lanes.as_mut_ptr() };
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(out, self.0);
            _mm256_storeu_ps(out.add(LANES / 2), self.1);
            if !direct {
                Array(lanes).store(to);
            }
        }
    }

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_add_ps(self.0, other.0), _mm256_add_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_sub_ps(self.0, other.0), _mm256_sub_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn mul(self, other: Self) -> Self {
        // SAFETY: see above.
        unsafe { Self(_mm256_mul_ps(self.0, other.0), _mm256_mul_ps(self.1, other.1)) }
    }

    #[inline(always)]
    fn mul_add(self, factor: Self, addend: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let low = _mm256_fmadd_ps(self.0, factor.0, addend.0);
            Self(low, _mm256_fmadd_ps(self.1, factor.1, addend.1))
        }
    }

    #[inline(always)]
    fn with_slope(self, slope: Self) -> Self {
        // SAFETY: see above.
        unsafe {
            let half = |value, slope| {
                let positive = _mm256_cmp_ps::<_CMP_GT_OQ>(value, _mm256_setzero_ps());
                _mm256_blendv_ps(_mm256_mul_ps(value, slope), value, positive)
            };
            Self(half(self.0, slope.0), half(self.1, slope.1))
        }
    }
}
