//! Dequantization of blocks: numbers that share scales.
//!
//! Most layouts are those of ggml (`ggml-common.h`): 32 elements with one f16 scale, or 256 with a scale for each 16 or
//! 32 of them. Candle's readers need a copy of the whole tensor in aligned memory, so these work on plain bytes; the
//! tests compare them with candle's, bit by bit. `table_blocks.rs` has the layouts whose codes are indices of a table.

use candle_core::quantized::GgmlDType;
use half::f16;

use super::table_blocks::{FP4_VALUES, NF4_VALUES, indexed_4, iq4_nl, iq4_xs};

/// A layout of blocks.
#[allow(non_camel_case_types)] // the names that everybody knows them by
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockType {
    /// 4 bits, a scale for 32.
    Q4_0,
    /// 4 bits, a scale and a minimum for 32.
    Q4_1,
    /// 5 bits, a scale for 32.
    Q5_0,
    /// 5 bits, a scale and a minimum for 32.
    Q5_1,
    /// 8 bits, a scale for 32.
    Q8_0,
    /// 2 bits, 16 scales and minima of 4 bits for 256.
    Q2_K,
    /// 3 bits, 16 scales of 6 bits for 256.
    Q3_K,
    /// 4 bits, 8 scales and minima of 6 bits for 256.
    Q4_K,
    /// 5 bits, 8 scales and minima of 6 bits for 256.
    Q5_K,
    /// 6 bits, 16 scales of 8 bits for 256.
    Q6_K,
    /// 4 bits that are indices of a table, a scale for 32.
    IQ4_NL,
    /// 4 bits that are indices of a table, 8 scales of 6 bits for 256.
    IQ4_XS,
    /// 4 bits that are indices of bitsandbytes' table of quantiles, a scale in f32 for 64.
    NF4,
    /// Floats of 4 bits of bitsandbytes, a scale in f32 for 64.
    FP4,
}

impl BlockType {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2_K,
        Self::Q3_K,
        Self::Q4_K,
        Self::Q5_K,
        Self::Q6_K,
        Self::IQ4_NL,
        Self::IQ4_XS,
        Self::NF4,
        Self::FP4,
    ];

    /// Those that numbers can be converted to.
    pub fn writable() -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(|block| block.quantizer().is_some())
    }

    /// Elements of a block.
    pub fn elements(self) -> usize {
        match self {
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::IQ4_NL => 32,
            Self::NF4 | Self::FP4 => 64,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K | Self::IQ4_XS => 256,
        }
    }

    /// Bytes of a block.
    pub fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 2 + 16,
            Self::Q4_1 => 2 + 2 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 2 + 2 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q2_K => 16 + 64 + 2 + 2,
            Self::Q3_K => 32 + 64 + 12 + 2,
            Self::Q4_K => 2 + 2 + 12 + 128,
            Self::Q5_K => 2 + 2 + 12 + 32 + 128,
            Self::Q6_K => 128 + 64 + 16 + 2,
            Self::IQ4_NL => 2 + 16,
            Self::IQ4_XS => 2 + 2 + 4 + 128,
            Self::NF4 | Self::FP4 => 4 + 32,
        }
    }

    /// candle's type, whose quantizers make the blocks. `None` for layouts that are read only.
    pub fn quantizer(self) -> Option<GgmlDType> {
        Some(match self {
            Self::Q4_0 => GgmlDType::Q4_0,
            Self::Q4_1 => GgmlDType::Q4_1,
            Self::Q5_0 => GgmlDType::Q5_0,
            Self::Q5_1 => GgmlDType::Q5_1,
            Self::Q8_0 => GgmlDType::Q8_0,
            Self::Q2_K => GgmlDType::Q2K,
            Self::Q3_K => GgmlDType::Q3K,
            Self::Q4_K => GgmlDType::Q4K,
            Self::Q5_K => GgmlDType::Q5K,
            Self::Q6_K => GgmlDType::Q6K,
            Self::IQ4_NL | Self::IQ4_XS | Self::NF4 | Self::FP4 => return None,
        })
    }

    /// Whether all scales of a whole number of blocks are finite. Others come from damaged files: every element of such a
    /// block is infinite or no number.
    pub fn has_finite_scales(self, bytes: &[u8]) -> bool {
        /// Whether the f16 scales at these offsets are.
        fn halves(block: &[u8], offsets: &[usize]) -> bool {
            offsets.iter().all(|&at| half(block, at).is_finite())
        }
        bytes.chunks_exact(self.bytes()).all(|block| match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::IQ4_NL | Self::IQ4_XS => halves(block, &[0]),
            Self::Q4_1 | Self::Q5_1 | Self::Q4_K | Self::Q5_K => halves(block, &[0, 2]),
            Self::Q2_K => halves(block, &[80, 82]),
            Self::Q3_K => halves(block, &[108]),
            Self::Q6_K => halves(block, &[208]),
            Self::NF4 | Self::FP4 => block.first_chunk().is_some_and(|scale| f32::from_le_bytes(*scale).is_finite()),
        })
    }

    /// Passes `count` elements of the blocks in `bytes`, from index `start` on, to `put`, one block at a time. Elements
    /// beyond the end of `bytes` are left out.
    pub fn read(self, bytes: &[u8], start: usize, count: usize, mut put: impl FnMut(&[f32])) {
        let (elements, size) = (self.elements(), self.bytes());
        let mut values = [0f32; 256];
        let values = &mut values[..elements];
        let (mut skipped, mut rest) = (start % elements, count);
        for bytes in bytes.chunks_exact(size).skip(start / elements) {
            if rest == 0 {
                break;
            }
            self.decode(bytes, values);
            let wanted = rest.min(elements - skipped);
            put(&values[skipped..skipped + wanted]);
            (rest, skipped) = (rest - wanted, 0);
        }
    }

    /// The elements of one block.
    fn decode(self, bytes: &[u8], values: &mut [f32]) {
        match self {
            Self::Q4_0 => q4_0(bytes, values),
            Self::Q4_1 => q4_1(bytes, values),
            Self::Q5_0 => q5_0(bytes, values),
            Self::Q5_1 => q5_1(bytes, values),
            Self::Q8_0 => q8_0(bytes, values),
            Self::Q2_K => q2_k(bytes, values),
            Self::Q3_K => q3_k(bytes, values),
            Self::Q4_K => q4_k(bytes, values),
            Self::Q5_K => q5_k(bytes, values),
            Self::Q6_K => q6_k(bytes, values),
            Self::IQ4_NL => iq4_nl(bytes, values),
            Self::IQ4_XS => iq4_xs(bytes, values),
            Self::NF4 => indexed_4(&NF4_VALUES, bytes, values),
            Self::FP4 => indexed_4(&FP4_VALUES, bytes, values),
        }
    }
}

// Below, `bytes` is one block and `out` its elements: `read` slices both.

pub(super) fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

fn q4_0(bytes: &[u8], out: &mut [f32]) {
    let d = half(bytes, 0);
    for (i, q) in bytes[2..].iter().enumerate() {
        out[i] = f32::from((q & 0xf) as i8 - 8) * d;
        out[i + 16] = f32::from((q >> 4) as i8 - 8) * d;
    }
}

fn q4_1(bytes: &[u8], out: &mut [f32]) {
    let (d, m) = (half(bytes, 0), half(bytes, 2));
    for (i, q) in bytes[4..].iter().enumerate() {
        out[i] = f32::from(q & 0xf) * d + m;
        out[i + 16] = f32::from(q >> 4) * d + m;
    }
}

/// The fifth bits of 32 elements, as 0 or 16.
fn fifth(bytes: &[u8], at: usize) -> impl Fn(usize) -> u8 {
    let bits = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    move |i| ((bits >> i & 1) << 4) as u8
}

fn q5_0(bytes: &[u8], out: &mut [f32]) {
    let (d, high) = (half(bytes, 0), fifth(bytes, 2));
    for (i, q) in bytes[6..].iter().enumerate() {
        out[i] = f32::from((q & 0xf | high(i)) as i8 - 16) * d;
        out[i + 16] = f32::from((q >> 4 | high(i + 16)) as i8 - 16) * d;
    }
}

fn q5_1(bytes: &[u8], out: &mut [f32]) {
    let (d, m, high) = (half(bytes, 0), half(bytes, 2), fifth(bytes, 4));
    for (i, q) in bytes[8..].iter().enumerate() {
        out[i] = f32::from(q & 0xf | high(i)) * d + m;
        out[i + 16] = f32::from(q >> 4 | high(i + 16)) * d + m;
    }
}

fn q8_0(bytes: &[u8], out: &mut [f32]) {
    let d = half(bytes, 0);
    for (out, &q) in out.iter_mut().zip(&bytes[2..]) {
        *out = f32::from(q as i8) * d;
    }
}

fn q2_k(bytes: &[u8], out: &mut [f32]) {
    let (scales, quants) = (&bytes[..16], &bytes[16..80]);
    let (d, min) = (half(bytes, 80), half(bytes, 82));
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let (dl, ml) = (d * f32::from(scales[group] & 0xf), min * f32::from(scales[group] >> 4));
        // Two halves of 128; in each, four shifts of the same 32 bytes, of which a group has one half.
        let (first, shift) = (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2);
        for (out, q) in out.iter_mut().zip(&quants[first..]) {
            *out = dl * f32::from(q >> shift & 3) - ml;
        }
    }
}

fn q3_k(bytes: &[u8], out: &mut [f32]) {
    let (high, quants, packed, d) = (&bytes[..32], &bytes[32..96], &bytes[96..108], half(bytes, 108));
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        // The four low bits of a scale are in the first eight bytes, its two high bits in the last four.
        let low = packed[group % 8] >> (group / 8 * 4) & 0xf;
        let top = packed[8 + group % 4] >> (group / 4 * 2) & 3;
        let dl = d * f32::from((low | top << 4) as i8 - 32);
        let (first, shift, half) = (group / 8 * 32 + group % 2 * 16, group % 8 / 2 * 2, group % 2 * 16);
        for (i, out) in out.iter_mut().enumerate() {
            let missing = if high[half + i] >> (group / 2) & 1 == 0 { 4 } else { 0 };
            *out = dl * f32::from((quants[first + i] >> shift & 3) as i8 - missing);
        }
    }
}

/// The scale and the minimum of group `i` of 8, each of 6 bits, packed into 12 bytes.
fn scale_and_min(packed: &[u8], i: usize) -> (f32, f32) {
    let (scale, min) = if i < 4 {
        (packed[i] & 63, packed[i + 4] & 63)
    } else {
        let (low, high) = (packed[i + 4], [packed[i - 4], packed[i]]);
        (low & 0xf | high[0] >> 6 << 4, low >> 4 | high[1] >> 6 << 4)
    };
    (f32::from(scale), f32::from(min))
}

fn q4_k(bytes: &[u8], out: &mut [f32]) {
    let (d, min, packed, quants) = (half(bytes, 0), half(bytes, 2), &bytes[4..16], &bytes[16..144]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, m) = scale_and_min(packed, group);
        let (d, m) = (d * scale, min * m);
        for (out, q) in out.iter_mut().zip(&quants[group / 2 * 32..]) {
            *out = d * f32::from(q >> (group % 2 * 4) & 0xf) - m;
        }
    }
}

fn q5_k(bytes: &[u8], out: &mut [f32]) {
    let (d, min, packed) = (half(bytes, 0), half(bytes, 2), &bytes[4..16]);
    let (high, quants) = (&bytes[16..48], &bytes[48..176]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, m) = scale_and_min(packed, group);
        let (d, m) = (d * scale, min * m);
        for ((out, q), high) in out.iter_mut().zip(&quants[group / 2 * 32..]).zip(high) {
            let q = q >> (group % 2 * 4) & 0xf | (high >> group & 1) << 4;
            *out = d * f32::from(q) - m;
        }
    }
}

fn q6_k(bytes: &[u8], out: &mut [f32]) {
    let (low, high, scales, d) = (&bytes[..128], &bytes[128..192], &bytes[192..208], half(bytes, 208));
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let d = d * f32::from(scales[group] as i8);
        // Two halves of 128 elements; in each, four rows of 32, of which a group is one half.
        let (half, row, first) = (group / 8, group % 8 / 2, group % 2 * 16);
        for (i, out) in out.iter_mut().enumerate() {
            let i = first + i;
            let low = low[half * 64 + row % 2 * 32 + i] >> (row / 2 * 4) & 0xf;
            let high = high[half * 32 + i] >> (row * 2) & 3;
            *out = d * f32::from((low | high << 4) as i8 - 32);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use candle_core::quantized::{QStorage, QTensor};
    use candle_core::{Device, Tensor};

    use super::*;

    fn read(block: BlockType, bytes: &[u8], start: usize, out: &mut [f32]) {
        let mut at = 0;
        block.read(bytes, start, out.len(), |values| {
            out[at..at + values.len()].copy_from_slice(values);
            at += values.len();
        });
    }

    #[test]
    fn every_layout_is_read_as_candle_reads_it() {
        let values: Vec<f32> = (0..4 * 256).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i % 97) as f32)).collect();
        let tensor = Tensor::new(values.as_slice(), &Device::Cpu).unwrap().reshape((4, 256)).unwrap();
        for block in BlockType::writable() {
            let ggml = block.quantizer().unwrap();
            let quantized = QTensor::quantize(&tensor, ggml).unwrap();
            let bytes = quantized.data().unwrap().into_owned();
            let check = |bytes: &[u8]| {
                let storage = QStorage::from_data(Cow::Borrowed(bytes), &Device::Cpu, ggml).unwrap();
                let expected = QTensor::new(storage, (4, 256)).unwrap().dequantize(&Device::Cpu).unwrap();
                let mut found = vec![0f32; 4 * 256];
                read(block, bytes, 0, &mut found);
                let expected: Vec<f32> = expected.flatten_all().unwrap().to_vec1().unwrap();
                let differ = found.iter().zip(&expected).position(|(a, b)| a != b && !(a.is_nan() && b.is_nan()));
                assert_eq!(differ.map(|i| (i, found[i], expected[i])), None, "{block:?}");
            };
            assert_eq!(bytes.len(), 4 * 256 / block.elements() * block.bytes());
            check(&bytes);
            // Random bytes, so every bit pattern, also those that no quantizer writes. Scales may be infinite or NaN.
            let mut state = 1u32;
            let noise = bytes.iter().map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 24) as u8
            });
            check(&noise.collect::<Vec<u8>>());
            // Any range, whether it begins with a block or not.
            let (mut all, mut part) = (vec![0f32; 4 * 256], vec![0f32; 300]);
            read(block, &bytes, 0, &mut all);
            read(block, &bytes, 217, &mut part);
            assert_eq!(part, all[217..517]);
        }
    }
}
