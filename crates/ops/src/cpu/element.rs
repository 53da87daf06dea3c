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

    #[inline]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    #[inline]
    fn from_f32(value: f32) -> Self {
        f16::from_f32(value)
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
    fn bf16_rounds_as_the_half_crate_does() {
        for bits in (0..=u32::MAX).step_by(65_521) {
            let value = f32::from_bits(bits);
            let (found, expected) = (<bf16 as Element>::from_f32(value), bf16::from_f32(value));
            assert!(found == expected || (found.is_nan() && expected.is_nan()), "{value}");
        }
    }
}
