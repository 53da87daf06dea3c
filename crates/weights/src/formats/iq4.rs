//! ggml's blocks of 4 bits with a table of values: IQ4_NL and IQ4_XS. They are read as f32.
//!
//! The layouts are those of `dequantize_row_iq4_nl` and `dequantize_row_iq4_xs` in ggml's `ggml-quants.c`.

use half::f16;

/// The values of the 16 codes, `kvalues_iq4nl` of ggml.
const VALUES: [f32; 16] = [-127., -104., -83., -65., -49., -35., -22., -10., 1., 13., 25., 38., 53., 69., 89., 113.];

/// Elements that share a scale.
const GROUP: usize = 32;
/// Bytes of a group's codes.
const GROUP_BYTES: usize = GROUP / 2;

/// A layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Iq4 {
    /// A scale for 32 elements.
    Nl,
    /// A scale for 256 elements, and 8 of 6 bits for 32 each.
    Xs,
}

impl Iq4 {
    /// The names of the layouts in messages.
    pub(super) const NAMES: &'static str = "IQ4_NL, IQ4_XS";

    /// The layout with ggml's number `id`.
    pub(super) fn of(id: u32) -> Option<Self> {
        match id {
            20 => Some(Self::Nl),
            23 => Some(Self::Xs),
            _ => None,
        }
    }

    /// Elements and bytes of a block.
    fn block(self) -> (usize, usize) {
        match self {
            Self::Nl => (GROUP, 2 + GROUP_BYTES),
            Self::Xs => (8 * GROUP, 2 + 2 + 4 + 8 * GROUP_BYTES),
        }
    }

    /// The size of a tensor of `shape` in bytes. `None` if blocks do not divide its rows, or the size overflows.
    pub(super) fn bytes(self, shape: &[usize]) -> Option<usize> {
        let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim))?;
        let (block, bytes) = self.block();
        let row = shape.last().copied().unwrap_or(1);
        row.is_multiple_of(block).then(|| (elements / block).checked_mul(bytes))?
    }

    /// The elements of whole blocks as little-endian f32.
    pub(super) fn decode(self, stored: &[u8]) -> Vec<u8> {
        let (elements, size) = self.block();
        let mut out = Vec::with_capacity(stored.len() / size * elements * size_of::<f32>());
        for block in stored.chunks_exact(size) {
            let (head, codes) = block.split_at(size - elements / 2);
            let scale = match head {
                [low, high, ..] => f16::from_le_bytes([*low, *high]).to_f32(),
                _ => 0.0,
            };
            for (i, codes) in codes.chunks_exact(GROUP_BYTES).enumerate() {
                let scale = scale * self.group_scale(head, i);
                let low = codes.iter().map(|code| code & 15);
                let high = codes.iter().map(|code| code >> 4);
                for code in low.chain(high) {
                    out.extend((scale * VALUES[usize::from(code)]).to_le_bytes()); // a code has 4 bits
                }
            }
        }
        out
    }

    /// The factor of group `i` of a block that begins with `head`.
    fn group_scale(self, head: &[u8], i: usize) -> f32 {
        match (self, head) {
            (Self::Xs, [_, _, first, second, low @ ..]) => {
                let low = low.get(i / 2).map_or(0, |byte| byte >> (4 * (i % 2)) & 15);
                let high = u16::from_le_bytes([*first, *second]) >> (2 * i) & 3;
                f32::from(low) + f32::from(high) * 16.0 - 32.0
            }
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(layout: Iq4, bytes: &[u8]) -> Vec<f32> {
        layout.decode(bytes).as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn low_halves_of_codes_come_first() {
        let mut block = f16::from_f32(0.5).to_le_bytes().to_vec();
        block.extend((0..16).map(|i| i | (15 - i) << 4));
        let found = values(Iq4::Nl, &block);
        assert_eq!(found[..16], VALUES.map(|value| value * 0.5));
        assert!(found[16..].iter().zip(VALUES.iter().rev()).all(|(found, value)| *found == value * 0.5));
        assert_eq!((Iq4::Nl.bytes(&[2, 32]), Iq4::Nl.bytes(&[2, 48])), (Some(36), None));
    }

    #[test]
    fn groups_have_scales_of_6_bits() {
        let mut block = f16::from_f32(1.0).to_le_bytes().to_vec();
        block.extend(0b11_10_01_00_11_10_01_00u16.to_le_bytes()); // the upper bits of groups 0 to 7: 0, 1, 2, 3, 0, ..
        block.extend([0x10, 0x32, 0x54, 0x76]); // the lower bits: 0, 1, 2, ..
        block.extend([0x88; 128]); // code 8 is 1
        let found = values(Iq4::Xs, &block);
        let scales: Vec<f32> = found.chunks(32).map(|group| group[0]).collect();
        assert_eq!(scales, [-32., -15., 2., 19., -28., -11., 6., 23.]);
        assert!(found.chunks(32).all(|group| group.iter().all(|value| *value == group[0])));
        assert_eq!((Iq4::Xs.bytes(&[1, 256]), Iq4::Xs.bytes(&[8, 32])), (Some(136), None));
    }
}
