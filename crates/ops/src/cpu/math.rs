//! Elementary functions in plain arithmetic, so that loops over them are vectorized, and a macro that compiles such
//! loops for every instruction path.
#![allow(unsafe_code)]

use candle_core::DType;

use super::Element;
use super::rounding::Rounding;

/// Defines a function whose body is compiled once for each instruction path, and which picks one when it is called.
/// Without fused operations in the source, every path has the same results.
///
/// A second generic parameter, `R: Rounding`, is the rounding of the path. With `T: Element => W` there is an operand type
/// `W: Operand<T>`.
macro_rules! for_every_isa {
    (
        $(#[$doc:meta])*
        $visibility:vis fn $name:ident$(<$generic:ident: $bound:ident $(=> $operand:ident)? $(, $rounding:ident: Rounding)?>)?
        ($($argument:ident: $type:ty),* $(,)?) $body:block
    ) => {
        $(#[$doc])*
        #[allow(unsafe_code)]
        $visibility fn $name$(<$generic: $bound $(, $operand: $crate::cpu::Operand<$generic>)?>)?($($argument: $type),*) {
            #[inline(always)]
            fn body$(<
                $generic: $bound
                $(, $operand: $crate::cpu::Operand<$generic>)?
                $(, $rounding: $crate::cpu::rounding::Rounding)?
            >)?($($argument: $type),*) $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma")]
            fn avx512bf16$(<$generic: $bound $(, $operand: $crate::cpu::Operand<$generic>)?>)?($($argument: $type),*) {
                for_every_isa!(@call body [$($generic $($operand)? $(, $rounding = Avx512Bf16)?)?] $($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
            fn avx512$(<$generic: $bound $(, $operand: $crate::cpu::Operand<$generic>)?>)?($($argument: $type),*) {
                for_every_isa!(@call body [$($generic $($operand)? $(, $rounding = Avx512)?)?] $($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2$(<$generic: $bound $(, $operand: $crate::cpu::Operand<$generic>)?>)?($($argument: $type),*) {
                for_every_isa!(@call body [$($generic $($operand)? $(, $rounding = Avx2)?)?] $($argument),*)
            }

            match $crate::cpu::isa::Isa::current() {
                // SAFETY: `Isa::current` returns a path that the CPU supports.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::isa::Isa::Avx512Bf16 | $crate::cpu::isa::Isa::Amx => unsafe {
                    for_every_isa!(@path avx512bf16 [$($generic $($operand)?)?] $($argument),*)
                },
                // SAFETY: `Isa::current` returns a path that the CPU supports.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::isa::Isa::Avx512 => unsafe {
                    for_every_isa!(@path avx512 [$($generic $($operand)?)?] $($argument),*)
                },
                // SAFETY: `Isa::current` returns a path that the CPU supports.
                #[cfg(target_arch = "x86_64")]
                $crate::cpu::isa::Isa::Avx2 => unsafe {
                    for_every_isa!(@path avx2 [$($generic $($operand)?)?] $($argument),*)
                },
                #[cfg(target_arch = "aarch64")]
                $crate::cpu::isa::Isa::Neon | $crate::cpu::isa::Isa::NeonBf16 => {
                    for_every_isa!(@call body [$($generic $($operand)? $(, $rounding = Fused)?)?] $($argument),*)
                }
                _ => for_every_isa!(@call body [$($generic $($operand)? $(, $rounding = Plain)?)?] $($argument),*),
            }
        }
    };
    (@path $path:ident [$($generic:ident)*] $($argument:ident),*) => { $path::<$($generic),*>($($argument),*) };
    (@call $body:ident [$($generic:ident)*] $($argument:ident),*) => { $body::<$($generic),*>($($argument),*) };
    (@call $body:ident [$($generic:ident)+, $rounding:ident = $type:ident] $($argument:ident),*) => {
        $body::<$($generic,)+ $crate::cpu::rounding::$type>($($argument),*)
    };
}

pub(crate) use for_every_isa;

/// `exp(x)` to within 2 units in the last place; 0 below -87.3, and the value at 88 above 88.
///
/// `exp(x) = 2^n exp(r)` with `|r| <= ln(2) / 2`, and a polynomial of degree 6 for `exp(r)` (Cephes' `expf`).
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    /// 1.5 * 2^23: adding it rounds to an integer, which is then in the low bits.
    const ROUNDER: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.336_54, 88.376_26);
    let shifted = clamped * std::f32::consts::LOG2_E + ROUNDER;
    let n = shifted - ROUNDER;
    let r = clamped - n * LN2_HIGH - n * LN2_LOW;
    let mut p = 1.987_569_1e-4;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 0.5;
    let y = p * r * r + r + 1.0;
    let power = f32::from_bits(((shifted.to_bits() as i32).wrapping_add(127)).wrapping_shl(23) as u32);
    if x < -87.336_54 { 0.0 } else { y * power }
}

/// `2^x` for `x <= 0`; 0 below -126. To within 2 units in the last place, or, where `T` keeps 8 bits, to within a
/// relative error of 7.5e-5: a fiftieth of the rounding to `T`.
///
/// `2^x = 2^n 2^r` with `|r| <= 1/2`, and a polynomial for `2^r`: of degree 6 (Cephes' `exp2f`), or the minimax
/// polynomial of degree 3.
#[inline(always)]
pub(crate) fn exp2_of_negative<T: Element, R: Rounding>(x: f32) -> f32 {
    const ROUNDER: f32 = 12_582_912.0; // 1.5 * 2^23, as in `exp`
    const EXACT: [f32; 7] =
        [1.535_336_2e-4, 1.339_887_4e-3, 9.618_437e-3, 5.550_332_5e-2, 2.402_264_8e-1, 6.931_472e-1, 1.0];
    const SHORT: [f32; 4] = [5.517_144e-2, 2.426_108_1e-1, 6.932_61e-1, 9.999_281e-1];
    let clamped = if x < -127.0 { -127.0 } else { x }; // NaN stays NaN
    let shifted = clamped + ROUNDER;
    let r = clamped - (shifted - ROUNDER);
    let coefficients = if T::DTYPE == DType::BF16 { &SHORT[..] } else { &EXACT };
    let mut p = coefficients[0];
    for &coefficient in &coefficients[1..] {
        p = R::mul_add(p, r, coefficient);
    }
    p * f32::from_bits(shifted.to_bits().wrapping_add(127) << 23) // 2^-127 becomes 0
}

/// `x / (1 + exp(-x))`.
#[inline(always)]
pub(crate) fn silu(x: f32) -> f32 {
    x / (1.0 + exp(-x))
}

/// `x / (1 + exp(-1.702 x))`.
#[inline(always)]
pub(crate) fn quick_gelu(x: f32) -> f32 {
    x / (1.0 + exp(-1.702 * x))
}

/// `max(x, 0)`. NaN stays NaN, so that a later check finds it.
#[inline(always)]
pub(crate) fn relu(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

/// `x / 2 (1 + erf(x / sqrt(2)))`, within 2e-7 of the largest of 1 and `|x|`.
///
/// The complementary error function is `t exp(p(t) - z^2)` with `t = 1 / (1 + z / 2)` and one polynomial of degree 9
/// (Numerical Recipes' `erfcc`): a fractional error under 1.2e-7 everywhere, and no branches.
#[inline(always)]
pub(crate) fn gelu_erf(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.5 * z);
    let mut p = 0.170_872_77;
    p = p * t - 0.822_152_23;
    p = p * t + 1.488_515_9;
    p = p * t - 1.135_204;
    p = p * t + 0.278_868_07;
    p = p * t - 0.186_288_06;
    p = p * t + 0.096_784_18;
    p = p * t + 0.374_091_96;
    p = p * t + 1.000_023_7;
    p = p * t - 1.265_512_2;
    let half_erfc = 0.5 * t * exp(p - z * z);
    x * if x > 0.0 { 1.0 - half_erfc } else { half_erfc }
}

/// `x / 2 (1 + tanh(u))` with `u = sqrt(2 / pi) (x + 0.044715 x^3)`, as `x / (1 + exp(-2 u))`.
#[inline(always)]
pub(crate) fn gelu_tanh(x: f32) -> f32 {
    const FACTOR: f32 = -2.0 * 0.797_884_6; // sqrt(2 / pi)
    x / (1.0 + exp(FACTOR * (x + 0.044_715 * x * x * x)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::rounding::Plain;

    #[test]
    fn exp_is_accurate_to_its_last_places() {
        for i in -900_000..900_000 {
            let x = i as f32 * 1e-4;
            let (found, expected) = (exp(x), f64::from(x).exp());
            if (-87.0..88.0).contains(&x) {
                assert!((f64::from(found) / expected - 1.0).abs() < 2.4e-7, "exp({x}) = {found}, expected {expected}");
            }
        }
        assert_eq!((exp(-1000.0), exp(f32::NEG_INFINITY), exp(0.0)), (0.0, 0.0, 1.0));
    }

    #[test]
    fn exp2_is_accurate_to_its_last_places() {
        for i in 0..1_270_000 {
            let x = i as f32 * -1e-4;
            let expected = f64::from(x).exp2();
            let [exact, short] = [exp2_of_negative::<f32, Plain>(x), exp2_of_negative::<half::bf16, Plain>(x)];
            let [exact, short] = [exact, short].map(|found| (f64::from(found) / expected - 1.0).abs());
            assert!(x <= -126.0 || (exact < 2.4e-7 && short < 7.6e-5), "2^{x}: off by {exact:e} and {short:e}");
        }
        let ends = [-1000.0, f32::NEG_INFINITY, 0.0];
        assert_eq!(ends.map(exp2_of_negative::<f32, Plain>), [0.0, 0.0, 1.0]);
        assert_eq!(exp2_of_negative::<half::bf16, Plain>(f32::NEG_INFINITY), 0.0);
        assert!(exp2_of_negative::<half::bf16, Plain>(f32::NAN).is_nan());
    }

    #[test]
    fn gelu_is_accurate_enough() {
        for i in -100_000..100_000 {
            let x = i as f32 * 1e-4;
            let expected = 0.5 * f64::from(x) * (1.0 + libm::erf(f64::from(x) / 2f64.sqrt()));
            let error = (f64::from(gelu_erf(x)) - expected).abs();
            assert!(error < 3e-7 * f64::from(x.abs().max(1.0)), "gelu({x}): off by {error}");
        }
    }
}
