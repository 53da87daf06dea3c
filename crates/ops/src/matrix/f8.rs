//! The 8-bit floats of the `F8_E4M3` type ("FN": no infinities, all ones is NaN) and of `F8_E5M2`: arXiv 2209.05433.

use half::f16;

/// The largest value.
const MAX: f32 = 448.0;
/// The least normal value: 2^-6.
const LEAST: f32 = 0.015_625;
/// 2^14.
const ROUNDER: f32 = 16_384.0;

/// The values of all bit patterns.
static VALUES: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut bits = 0;
    while bits < 256 {
        values[bits] = value(bits as u32);
        bits += 1;
    }
    values
};

const fn value(bits: u32) -> f32 {
    let (sign, exponent, mantissa) = (bits >> 7 << 31, bits >> 3 & 0xf, bits & 0x7);
    let magnitude = match (exponent, mantissa) {
        (0xf, 0x7) => f32::NAN,
        (0, _) => mantissa as f32 / 512.0,
        _ => f32::from_bits((exponent + 120) << 23 | mantissa << 20), // the exponent biases are 7 and 127
    };
    f32::from_bits(sign | magnitude.to_bits())
}

/// The value of an 8-bit float with 5 bits of exponent: the upper half of an f16.
pub fn f8_e5m2(bits: u8) -> f32 {
    f16::from_bits(u16::from(bits) << 8).to_f32()
}

/// The value of an 8-bit float with 4 bits of exponent.
pub fn f8_e4m3(bits: u8) -> f32 {
    VALUES[usize::from(bits)]
}

/// Rounds to the nearest 8-bit float, ties to even. Larger values become the largest one.
///
/// Without branches, so that a loop over many values is vectorized.
pub fn to_f8_e4m3(value: f32) -> u8 {
    const NOT_A_NUMBER: u32 = 0x7f;
    let bits = value.to_bits();
    let (sign, magnitude) = (bits >> 31 << 7, f32::from_bits(bits & 0x7fff_ffff));
    let limited = if magnitude < MAX { magnitude } else { MAX };
    // Below the least normal value: adding 2^14 rounds to multiples of 2^-9, the last place of 2^14, which are counted in the
    // low bits.
    let small = (limited + ROUNDER).to_bits() - ROUNDER.to_bits();
    // Else the upper 12 bits, rounded; the exponent biases are 127 and 7.
    let normal = limited.to_bits();
    let rounded = (normal + 0x7_ffff + (normal >> 20 & 1)) >> 20;
    let field = if limited < LEAST { small } else { rounded.wrapping_sub((127 - 7) << 3) };
    (sign | if magnitude.is_nan() { NOT_A_NUMBER } else { field }) as u8
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device, Tensor};

    use super::*;

    #[test]
    fn every_value_converts_to_itself() {
        for bits in 0..=u8::MAX {
            let value = f8_e4m3(bits);
            let expected = if value.is_nan() { bits & 0x80 | 0x7f } else { bits };
            assert_eq!(to_f8_e4m3(value), expected, "{value}");
        }
    }

    #[test]
    fn rounding_agrees_with_candle() {
        let values: Vec<f32> = (0..400_000u32)
            .map(|i| f32::from_bits(0x3a80_0000 + i * 397)) // from 2^-10 to beyond 448
            .filter(|value| value.abs() <= MAX)
            .flat_map(|value| [value, -value])
            .collect();
        let tensor = Tensor::new(values.as_slice(), &Device::Cpu).unwrap();
        let candles = tensor.to_dtype(DType::F8E4M3).unwrap().to_dtype(DType::F32).unwrap();
        for (value, expected) in values.iter().zip(candles.to_vec1::<f32>().unwrap()) {
            assert_eq!(f8_e4m3(to_f8_e4m3(*value)), expected, "{value}");
        }
        assert_eq!((to_f8_e4m3(1e9), to_f8_e4m3(f32::NEG_INFINITY)), (0x7e, 0xfe));
    }
}
