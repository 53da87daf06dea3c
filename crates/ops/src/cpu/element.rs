//! The element types of CPU kernels.

use candle_core::{CpuStorage, WithDType};
use half::{bf16, f16};

use super::scratch::Plain;

/// Calls a function that is generic over [`Element`] for a dtype. Another dtype is an error that names the operand.
macro_rules! dispatch {
    ($op:expr, $operand:literal, $dtype:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match $dtype {
            candle_core::DType::F32 => $function::<f32>($($argument),*),
            candle_core::DType::F16 => $function::<half::f16>($($argument),*),
            candle_core::DType::BF16 => $function::<half::bf16>($($argument),*),
            found => {
                Err($crate::Error::DType { op: $op, operand: $operand, expected: candle_core::DType::F32, found })
            }
        }
    };
}

/// An element type of activations and weights.
pub(crate) trait Element: WithDType + Plain {
    /// Zero.
    const ZERO: Self;
    /// The order in panels: whether two neighbors in `k` are interleaved, for dot products of pairs.
    const PAIRED: bool;
    fn to_f32(self) -> f32;
    /// Rounds to the nearest, ties to even.
    fn from_f32(value: f32) -> Self;
    /// The elements of a storage of this type.
    fn slice(storage: &CpuStorage) -> Option<&[Self]>;
    /// The same, mutable.
    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [Self]>;
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    const PAIRED: bool = false;

    #[inline]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        value
    }

    fn slice(storage: &CpuStorage) -> Option<&[Self]> {
        if let CpuStorage::F32(values) = storage { Some(values) } else { None }
    }

    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        if let CpuStorage::F32(values) = storage { Some(values) } else { None }
    }
}

impl Element for bf16 {
    const ZERO: Self = bf16::ZERO;
    const PAIRED: bool = true;

    #[inline]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        // Without branches, so that loops over it are vectorized: a NaN keeps its quiet bit.
        let bits = value.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let kept = if value.is_nan() { bits | 0x0040_0000 } else { rounded };
        bf16::from_bits((kept >> 16) as u16)
    }

    fn slice(storage: &CpuStorage) -> Option<&[Self]> {
        if let CpuStorage::BF16(values) = storage { Some(values) } else { None }
    }

    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        if let CpuStorage::BF16(values) = storage { Some(values) } else { None }
    }
}

impl Element for f16 {
    const ZERO: Self = f16::ZERO;
    const PAIRED: bool = false;

    // Both conversions are without branches, so that loops over them are vectorized: `half` asks for F16C each time.

    #[inline]
    fn to_f32(self) -> f32 {
        const EXPONENTS: u32 = (127 - 15) << 23; // difference of the exponent biases
        const LEAST: f32 = 1.0 / 16_777_216.0; // the smallest f16, 2^-24
        let magnitude = i32::from(self.to_bits() & 0x7fff);
        let normal = ((magnitude as u32) << 13) + EXPONENTS;
        let bits = match magnitude {
            ..0x400 => (magnitude as f32 * LEAST).to_bits(), // zero and subnormal numbers
            0x400..0x7c00 => normal,
            _ => normal + EXPONENTS, // infinity or NaN
        };
        f32::from_bits(bits | u32::from(self.to_bits() & 0x8000) << 16)
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        /// Its unit in the last place is the smallest f16, 2^-24: adding it rounds to a multiple of that.
        const ROUNDER: f32 = 0.5;
        const LEAST_NORMAL: u32 = (127 - 14) << 23;
        const TOO_LARGE: u32 = (127 + 16) << 23;
        const INFINITY: u32 = 0x7f80_0000;
        let bits = value.to_bits() & 0x7fff_ffff;
        let small = (f32::from_bits(bits) + ROUNDER).to_bits().wrapping_sub(ROUNDER.to_bits());
        let odd = bits >> 13 & 1;
        let normal = bits.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
        let large = if bits > INFINITY { 0x7e00 } else { 0x7c00 };
        let finite = if bits < LEAST_NORMAL { small } else { normal };
        let magnitude = if bits >= TOO_LARGE { large } else { finite };
        f16::from_bits((magnitude | value.to_bits() >> 16 & 0x8000) as u16)
    }

    fn slice(storage: &CpuStorage) -> Option<&[Self]> {
        if let CpuStorage::F16(values) = storage { Some(values) } else { None }
    }

    fn slice_mut(storage: &mut CpuStorage) -> Option<&mut [Self]> {
        if let CpuStorage::F16(values) = storage { Some(values) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_rounds_as_the_half_crate_does() {
        let near_f16 = (0..=u16::MAX).map(|bits| f16::from_bits(bits).to_f32().to_bits());
        let between = near_f16.flat_map(|bits| [bits, bits + 0xfff, bits + 0x1000, bits + 0x1001, bits + 0x1fff]);
        for bits in (0..=u32::MAX).step_by(65_521).chain(between) {
            let value = f32::from_bits(bits);
            let (found, expected) = (<f16 as Element>::from_f32(value), f16::from_f32(value));
            assert!(
                found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()),
                "{value:e}: {found:?}, expected {expected:?}"
            );
        }
    }

    #[test]
    fn bf16_rounds_as_the_half_crate_does() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            let value = f32::from_bits(bits);
            let (found, expected) = (<bf16 as Element>::from_f32(value), bf16::from_f32(value));
            assert!(found == expected || (found.is_nan() && expected.is_nan()), "{value}");
        }
    }
}
