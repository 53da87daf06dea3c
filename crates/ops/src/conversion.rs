//! Conversions between element types, for loading checkpoints.

use half::{bf16, f16};

use crate::cpu::Element;
use crate::cpu::math::for_every_isa;

for_every_isa! {
    /// Little-endian f16 to f32. The shorter slice determines the count.
    pub fn f16_to_f32(bytes: &[u8], out: &mut [f32]) {
        for (half, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
            *out = Element::to_f32(f16::from_le_bytes(*half));
        }
    }
}

for_every_isa! {
    /// Little-endian f16 to bf16, to the nearest, ties to even. The shorter slice determines the count.
    pub fn f16_to_bf16(bytes: &[u8], out: &mut [bf16]) {
        for (half, out) in bytes.as_chunks::<2>().0.iter().zip(out) {
            *out = <bf16 as Element>::from_f32(Element::to_f32(f16::from_le_bytes(*half)));
        }
    }
}

for_every_isa! {
    /// f32 to bf16, to the nearest, ties to even. The shorter slice determines the count.
    pub fn f32_to_bf16(values: &[f32], out: &mut [bf16]) {
        for (value, out) in values.iter().zip(out) {
            *out = <bf16 as Element>::from_f32(*value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_converted_as_the_half_crate_does() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|half| half.to_le_bytes()).collect();
        let (mut wide, mut narrow) = (vec![0f32; halves.len()], vec![bf16::ZERO; halves.len()]);
        f16_to_f32(&bytes, &mut wide);
        f16_to_bf16(&bytes, &mut narrow);
        for ((half, wide), narrow) in halves.into_iter().zip(wide).zip(narrow) {
            if half.is_nan() {
                assert!(wide.is_nan() && narrow.is_nan(), "{half:?}");
            } else {
                assert_eq!(wide.to_bits(), half.to_f32().to_bits(), "{half:?}");
                assert_eq!(narrow, bf16::from_f32(half.to_f32()), "{half:?}");
                assert_eq!(narrow.is_sign_negative(), half.is_sign_negative(), "{half:?}");
            }
        }
    }

    #[test]
    fn bf16_is_rounded_as_the_half_crate_does() {
        let values: Vec<f32> = (0..=u32::MAX).step_by(65_521).map(f32::from_bits).collect();
        let mut found = vec![bf16::ZERO; values.len()];
        f32_to_bf16(&values, &mut found);
        for (value, found) in values.into_iter().zip(found) {
            let expected = bf16::from_f32(value);
            assert!(found == expected || (found.is_nan() && expected.is_nan()), "{value}");
        }
    }
}
