//! Blocks whose 4-bit codes are indices of a table of values.
//!
//! IQ4_NL and IQ4_XS are ggml's (`dequantize_row_iq4_nl`, `dequantize_row_iq4_xs` in `ggml-quants.c`). NF4 and FP4 are
//! bitsandbytes' (`get_4bit_type` in `functional.py`): 64 elements and the largest magnitude of them. Its files have codes and
//! magnitudes in separate tensors; here a block is the magnitude, an f32, and the codes as they are.

use super::blocks::half;

/// The values of ggml's codes, `kvalues_iq4nl`.
const IQ4_VALUES: [f32; 16] =
    [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

/// The values of bitsandbytes' NF4 codes: quantiles of a normal distribution.
pub(super) const NF4_VALUES: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// The values of bitsandbytes' FP4 codes: a sign, two bits of exponent, one of mantissa, over the largest value.
pub(super) const FP4_VALUES: [f32; 16] = {
    let magnitudes = [0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0];
    let mut values = [0.0; 16];
    let mut code = 0;
    while code < 8 {
        values[code] = magnitudes[code] / 12.0;
        values[code + 8] = -magnitudes[code] / 12.0;
        code += 1;
    }
    values
};

/// Elements that share a scale in ggml's layouts.
const GROUP: usize = 32;

/// The elements of a group: those of the low halves of the codes come first.
fn group(scale: f32, codes: &[u8], out: &mut [f32]) {
    let (first, second) = out.split_at_mut(GROUP / 2);
    for ((code, low), high) in codes.iter().zip(first).zip(second) {
        *low = scale * IQ4_VALUES[usize::from(code & 0xf)];
        *high = scale * IQ4_VALUES[usize::from(code >> 4)];
    }
}

pub(super) fn iq4_nl(bytes: &[u8], out: &mut [f32]) {
    group(half(bytes, 0), &bytes[2..], out);
}

pub(super) fn iq4_xs(bytes: &[u8], out: &mut [f32]) {
    let (d, top) = (half(bytes, 0), u16::from_le_bytes([bytes[2], bytes[3]]));
    let (low, codes) = (&bytes[4..8], &bytes[8..]);
    for (i, (codes, out)) in codes.chunks_exact(GROUP / 2).zip(out.chunks_exact_mut(GROUP)).enumerate() {
        let low = low[i / 2] >> (4 * (i % 2)) & 0xf;
        let top = (top >> (2 * i) & 3) as u8;
        group(d * f32::from((low | top << 4) as i8 - 32), codes, out);
    }
}

/// bitsandbytes' codes of this table: those of the high halves come first, two neighbors in a byte.
pub(super) fn indexed_4(table: &[f32; 16], bytes: &[u8], out: &mut [f32]) {
    let Some((scale, codes)) = bytes.split_first_chunk() else { return };
    let scale = f32::from_le_bytes(*scale);
    for (code, out) in codes.iter().zip(out.as_chunks_mut::<2>().0) {
        *out = [table[usize::from(code >> 4)] * scale, table[usize::from(code & 0xf)] * scale];
    }
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::super::BlockType;
    use super::*;

    fn values(block: BlockType, bytes: &[u8]) -> Vec<f32> {
        let mut values = Vec::new();
        block.read(bytes, 0, bytes.len() / block.bytes() * block.elements(), |part| values.extend_from_slice(part));
        values
    }

    #[test]
    fn low_halves_of_ggmls_codes_come_first() {
        let mut block = f16::from_f32(0.5).to_le_bytes().to_vec();
        block.extend((0..16).map(|i| i | (15 - i) << 4));
        let found = values(BlockType::IQ4_NL, &block);
        assert_eq!(found[..16], IQ4_VALUES.map(|value| value * 0.5));
        assert!(found[16..].iter().zip(IQ4_VALUES.iter().rev()).all(|(found, value)| *found == value * 0.5));
    }

    #[test]
    fn groups_have_scales_of_6_bits() {
        let mut block = f16::from_f32(1.0).to_le_bytes().to_vec();
        block.extend(0b11_10_01_00_11_10_01_00u16.to_le_bytes()); // the upper bits of groups 0 to 7: 0, 1, 2, 3, 0, ..
        block.extend([0x10, 0x32, 0x54, 0x76]); // the lower bits: 0, 1, 2, ..
        block.extend([0x88; 128]); // code 8 is 1
        let found = values(BlockType::IQ4_XS, &block);
        let scales: Vec<f32> = found.chunks(32).map(|group| group[0]).collect();
        assert_eq!(scales, [-32., -15., 2., 19., -28., -11., 6., 23.]);
        assert!(found.chunks(32).all(|group| group.iter().all(|value| *value == group[0])));
    }

    #[test]
    fn high_halves_of_bitsandbytes_codes_come_first() {
        let mut block = 2f32.to_le_bytes().to_vec();
        block.extend((0..32u8).map(|i| (i % 8 * 2) << 4 | (i % 8 * 2 + 1))); // codes 0 to 15, four times
        for (kind, table) in [(BlockType::NF4, NF4_VALUES), (BlockType::FP4, FP4_VALUES)] {
            let found = values(kind, &block);
            assert_eq!(found.len(), 64);
            assert!(found.chunks(16).all(|sixteen| *sixteen == table.map(|value| value * 2.0)), "{kind:?}");
        }
        assert_eq!((FP4_VALUES[3], FP4_VALUES[11], FP4_VALUES[1]), (1.0, -1.0, 0.0625 / 12.0));
    }

    #[test]
    fn scales_that_are_no_numbers_are_found() {
        for block in BlockType::ALL {
            let fine = vec![0; 3 * block.bytes()];
            assert!(block.has_finite_scales(&fine), "{block:?}");
            let mut damaged = fine;
            // All ones are NaN in any type of a scale; other fields may have any bits.
            damaged[block.bytes()..2 * block.bytes()].fill(0xff);
            assert!(!block.has_finite_scales(&damaged), "{block:?}");
        }
    }
}
