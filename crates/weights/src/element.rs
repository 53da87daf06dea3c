//! Stored elements to the elements of a slab.

use candle_core::WithDType;
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use safetensors::Dtype;

use crate::formats::blocks;
use crate::stored_type::StoredType;

/// An element type of slabs.
pub(crate) trait Element: WithDType + Default {
    /// Rounds f32 values, to the nearest, ties to even.
    fn round(values: &[f32], out: &mut [Self]);
}

impl Element for f32 {
    fn round(values: &[f32], out: &mut [Self]) {
        out.copy_from_slice(values);
    }
}

impl Element for f16 {
    fn round(values: &[f32], out: &mut [Self]) {
        out.convert_from_f32_slice(values);
    }
}

impl Element for bf16 {
    fn round(values: &[f32], out: &mut [Self]) {
        out.convert_from_f32_slice(values);
    }
}

/// Elements that are converted at a time: three small buffers in the first-level cache.
const CHUNK: usize = 1024;

/// Converts the stored elements in `bytes` to `out`, whose length is the number of elements.
///
/// Gives false where `dtype` is no type of weights or the lengths do not fit.
pub(crate) fn decode<T: Element>(dtype: StoredType, bytes: &[u8], out: &mut [T]) -> bool {
    match dtype {
        StoredType::Plain(dtype) => decode_plain(dtype, bytes, out),
        StoredType::Blocks(block) => blocks::decode(block, bytes, out),
    }
}

fn decode_plain<T: Element>(dtype: Dtype, bytes: &[u8], out: &mut [T]) -> bool {
    let size = match dtype {
        Dtype::F64 => 8,
        Dtype::F32 => 4,
        Dtype::F16 | Dtype::BF16 => 2,
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => 1,
        _ => return false,
    };
    if bytes.len() != out.len() * size {
        return false;
    }
    let mut values = [0f32; CHUNK];
    let mut halves = [f16::ZERO; CHUNK];
    for (bytes, out) in bytes.chunks(CHUNK * size).zip(out.chunks_mut(CHUNK)) {
        let values = &mut values[..out.len()];
        match dtype {
            Dtype::F64 => each(bytes, values, |b: [u8; 8]| f64::from_le_bytes(b) as f32),
            Dtype::F32 => each(bytes, values, f32::from_le_bytes),
            Dtype::BF16 => each(bytes, values, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
            Dtype::F16 => {
                let halves = &mut halves[..out.len()];
                each(bytes, halves, f16::from_le_bytes);
                halves.convert_to_f32_slice(values);
            }
            Dtype::F8_E4M3 => each(bytes, values, |[b]: [u8; 1]| f8_e4m3(b)),
            // E5M2 is the upper half of an f16.
            _ => each(bytes, values, |[b]: [u8; 1]| f16::from_bits(u16::from(b) << 8).to_f32()),
        }
        T::round(values, out);
    }
    true
}

fn each<const N: usize, V>(bytes: &[u8], out: &mut [V], value: impl Fn([u8; N]) -> V) {
    for (bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = value(*bytes);
    }
}

/// The 8-bit float of the `F8_E4M3` type ("FN": no infinities, all ones is NaN): arXiv 2209.05433.
fn f8_e4m3(bits: u8) -> f32 {
    let exponent = i32::from(bits >> 3 & 0xf);
    let mantissa = f32::from(bits & 0x7);
    let magnitude = match (exponent, bits & 0x7) {
        (0xf, 0x7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if bits >> 7 == 1 { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_stored_type_decodes() {
        let decode_one = |dtype: Dtype, bytes: &[u8]| {
            let mut out = [0f32];
            assert!(decode(StoredType::from(dtype), bytes, &mut out));
            out[0]
        };
        assert_eq!(decode_one(Dtype::F64, &(-1.5f64).to_le_bytes()), -1.5);
        assert_eq!(decode_one(Dtype::F32, &0.1f32.to_le_bytes()), 0.1);
        assert_eq!(decode_one(Dtype::F16, &f16::from_f32(0.1).to_le_bytes()), f16::from_f32(0.1).to_f32());
        assert_eq!(decode_one(Dtype::BF16, &bf16::from_f32(0.1).to_le_bytes()), bf16::from_f32(0.1).to_f32());
        // torch.tensor([448, -0.0019531, 1.125]).to(torch.float8_e4m3fn).view(torch.uint8): 0x7e, 0x81, 0x39
        assert_eq!(decode_one(Dtype::F8_E4M3, &[0x7e]), 448.0);
        assert_eq!(decode_one(Dtype::F8_E4M3, &[0x81]), -0.001_953_125);
        assert_eq!(decode_one(Dtype::F8_E4M3, &[0x39]), 1.125);
        assert!(decode_one(Dtype::F8_E4M3, &[0x7f]).is_nan());
        assert_eq!(decode_one(Dtype::F8_E5M2, &[0x7b]), 57344.0);
        assert!(!decode(Dtype::I64.into(), &[0; 8], &mut [0f32]));
        assert!(!decode(Dtype::F32.into(), &[0; 3], &mut [0f32]));
    }

    #[test]
    fn chunks_meet_without_a_gap() {
        let stored: Vec<f16> = (0..3000).map(|i| f16::from_f32(i as f32)).collect();
        let bytes: Vec<u8> = stored.iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut out = vec![f16::ZERO; 3000];
        assert!(decode(Dtype::F16.into(), &bytes, &mut out));
        assert_eq!(out, stored);
    }
}
