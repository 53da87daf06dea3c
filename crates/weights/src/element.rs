//! Conversion of stored elements to the elements of a slab.

use std::fs::File;

use candle_core::WithDType;
use half::slice::HalfFloatSliceExt;
use half::vec::HalfBitsVecExt;
use half::{bf16, f16};
use kiln_mempool::{HostPool, Number};
use kiln_ops::{BlockType, MatrixType, ROW_FACTOR, f8_e4m3, f8_e5m2, f16_to_bf16, f16_to_f32, f32_to_bf16};
use safetensors::Dtype;

use crate::stored_type::StoredType;

/// An element type of slabs.
pub(crate) trait Element: WithDType {
    /// The corresponding type in a file.
    const STORED: Dtype;

    /// A vector of `len` zeros from a zeroed allocation, so that fresh pages are not written.
    fn zeros(len: usize) -> Vec<Self>;

    /// Little-endian elements of this type in `file` from byte `offset` on, without a copy ([`HostPool::map_file`]). `None` where
    /// that is not possible, or `check` refuses the bytes.
    fn mapped(file: &File, offset: u64, len: usize, check: impl FnOnce(&[u8]) -> bool) -> Option<Vec<Self>>;

    /// Appends little-endian bytes.
    fn append(values: &[Self], bytes: &mut Vec<u8>);

    /// Copies little-endian elements of this type.
    fn copy(bytes: &[u8], out: &mut [Self]);

    /// Converts little-endian f16 elements, rounded to nearest, ties to even.
    fn from_halves(bytes: &[u8], out: &mut [Self]);

    /// Converts f32 values, rounded to nearest, ties to even.
    fn round(values: &[f32], out: &mut [Self]);
}

/// Little-endian numbers of a file, on machines with this order of bytes.
fn map_little_endian<T: Number>(
    file: &File,
    offset: u64,
    len: usize,
    check: impl FnOnce(&[u8]) -> bool,
) -> Option<Vec<T>> {
    if cfg!(target_endian = "little") { HostPool::map_file(file, offset, len, check) } else { None }
}

impl Element for f32 {
    const STORED: Dtype = Dtype::F32;

    fn zeros(len: usize) -> Vec<Self> {
        vec![0.0; len]
    }

    fn mapped(file: &File, offset: u64, len: usize, check: impl FnOnce(&[u8]) -> bool) -> Option<Vec<Self>> {
        map_little_endian(file, offset, len, check)
    }

    fn append(values: &[Self], bytes: &mut Vec<u8>) {
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn copy(bytes: &[u8], out: &mut [Self]) {
        each(bytes, out, f32::from_le_bytes);
    }

    fn from_halves(bytes: &[u8], out: &mut [Self]) {
        f16_to_f32(bytes, out);
    }

    fn round(values: &[f32], out: &mut [Self]) {
        out.copy_from_slice(values);
    }
}

impl Element for f16 {
    const STORED: Dtype = Dtype::F16;

    fn zeros(len: usize) -> Vec<Self> {
        vec![0u16; len].reinterpret_into()
    }

    fn mapped(file: &File, offset: u64, len: usize, check: impl FnOnce(&[u8]) -> bool) -> Option<Vec<Self>> {
        map_little_endian::<u16>(file, offset, len, check).map(HalfBitsVecExt::reinterpret_into)
    }

    fn append(values: &[Self], bytes: &mut Vec<u8>) {
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn copy(bytes: &[u8], out: &mut [Self]) {
        each(bytes, out, f16::from_le_bytes);
    }

    fn from_halves(bytes: &[u8], out: &mut [Self]) {
        Self::copy(bytes, out);
    }

    fn round(values: &[f32], out: &mut [Self]) {
        out.convert_from_f32_slice(values);
    }
}

impl Element for bf16 {
    const STORED: Dtype = Dtype::BF16;

    fn zeros(len: usize) -> Vec<Self> {
        vec![0u16; len].reinterpret_into()
    }

    fn mapped(file: &File, offset: u64, len: usize, check: impl FnOnce(&[u8]) -> bool) -> Option<Vec<Self>> {
        map_little_endian::<u16>(file, offset, len, check).map(HalfBitsVecExt::reinterpret_into)
    }

    fn append(values: &[Self], bytes: &mut Vec<u8>) {
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    fn copy(bytes: &[u8], out: &mut [Self]) {
        each(bytes, out, bf16::from_le_bytes);
    }

    fn from_halves(bytes: &[u8], out: &mut [Self]) {
        f16_to_bf16(bytes, out);
    }

    fn round(values: &[f32], out: &mut [Self]) {
        f32_to_bf16(values, out);
    }
}

/// The number of elements that are converted at a time. The buffers fit in the first-level cache.
const CHUNK: usize = 512;

/// Elements as stored in a file.
#[derive(Clone, Copy)]
pub(crate) struct Stored<'a> {
    layout: Layout,
    bytes: &'a [u8],
}

#[derive(Clone, Copy)]
enum Layout {
    /// A type, and its size in bytes.
    Plain(Dtype, usize),
    Blocks(BlockType),
    /// Rows with factors, and the number of elements of each.
    Rows(MatrixType, usize),
}

impl<'a> Stored<'a> {
    /// `elements` elements of `dtype`, little-endian. `None` if `dtype` is not a weight type, or `bytes` has the wrong
    /// length.
    pub(crate) fn new(dtype: impl Into<StoredType>, bytes: &'a [u8], elements: usize) -> Option<Self> {
        let dtype = dtype.into();
        if let StoredType::Rows(kind) = dtype {
            let rows =
                bytes.len().checked_sub(elements).filter(|factors| factors.is_multiple_of(ROW_FACTOR))? / ROW_FACTOR;
            let fits = elements.checked_rem(rows).map_or(elements == 0, |rest| rest == 0);
            let layout = Layout::Rows(kind, elements.checked_div(rows).unwrap_or(0));
            return fits.then_some(Self { layout, bytes });
        }
        let layout = match dtype {
            StoredType::Plain(Dtype::F64) => Layout::Plain(Dtype::F64, 8),
            StoredType::Plain(Dtype::F32) => Layout::Plain(Dtype::F32, 4),
            StoredType::Plain(dtype @ (Dtype::F16 | Dtype::BF16)) => Layout::Plain(dtype, 2),
            StoredType::Plain(dtype @ (Dtype::F8_E4M3 | Dtype::F8_E5M2)) => Layout::Plain(dtype, 1),
            StoredType::Plain(_) => return None,
            StoredType::Blocks(block) => Layout::Blocks(block),
            StoredType::Rows(_) => return None, // above
        };
        (dtype.bytes(&[elements])? == bytes.len()).then_some(Self { layout, bytes })
    }

    /// Whether all scales are finite; types without scales have none that are not. Others come from damaged files.
    pub(crate) fn has_finite_scales(&self) -> bool {
        match self.layout {
            Layout::Plain(..) => true,
            Layout::Blocks(block) => block.has_finite_scales(self.bytes),
            Layout::Rows(_, k) => self
                .bytes
                .chunks(ROW_FACTOR + k)
                .all(|row| row.first_chunk().is_some_and(|factor| f32::from_le_bytes(*factor).is_finite())),
        }
    }

    /// Converts the elements from index `start` on. Elements of `out` past the stored ones do not change.
    pub(crate) fn read<T: Element>(&self, start: usize, out: &mut [T]) {
        let (dtype, size) = match self.layout {
            Layout::Plain(dtype, size) => (dtype, size),
            Layout::Blocks(block) => {
                let (count, mut rest) = (out.len(), out);
                return block.read(self.bytes, start, count, |values| rest = put(values, std::mem::take(&mut rest)));
            }
            Layout::Rows(_, 0) => return,
            Layout::Rows(kind, k) => {
                let (mut at, mut rest) = (start, out);
                for row in self.bytes.chunks(ROW_FACTOR + k).skip(start.checked_div(k).unwrap_or(0)) {
                    let count = rest.len().min(k - at % k);
                    kind.each(row, at % k, count, |values| rest = put(values, std::mem::take(&mut rest)));
                    at += count;
                    if rest.is_empty() {
                        break;
                    }
                }
                return;
            }
        };
        let bytes = self.bytes;
        let Some(bytes) = bytes.get(start * size..(start + out.len()) * size) else { return };
        if dtype == T::STORED {
            return T::copy(bytes, out);
        }
        if dtype == Dtype::F16 {
            return T::from_halves(bytes, out);
        }
        let mut values = [0f32; CHUNK];
        for (bytes, out) in bytes.chunks(CHUNK * size).zip(out.chunks_mut(CHUNK)) {
            let values = &mut values[..out.len()];
            match dtype {
                Dtype::F64 => each(bytes, values, |b: [u8; 8]| f64::from_le_bytes(b) as f32),
                Dtype::F32 => each(bytes, values, f32::from_le_bytes),
                Dtype::BF16 => each(bytes, values, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)),
                Dtype::F8_E4M3 => each(bytes, values, |[b]: [u8; 1]| f8_e4m3(b)),
                _ => each(bytes, values, |[b]: [u8; 1]| f8_e5m2(b)),
            }
            T::round(values, out);
        }
    }
}

/// Rounds values to the first elements of `out`, and returns the others.
fn put<'a, T: Element>(values: &[f32], out: &'a mut [T]) -> &'a mut [T] {
    let (part, after) = out.split_at_mut(values.len());
    T::round(values, part);
    after
}

fn each<const N: usize, V>(bytes: &[u8], out: &mut [V], value: impl Fn([u8; N]) -> V) {
    for (bytes, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = value(*bytes);
    }
}

#[cfg(test)]
mod tests {
    use kiln_ops::Rotation;

    use super::*;

    #[test]
    fn every_stored_type_decodes() {
        let decode_one = |dtype, bytes: &[u8]| {
            let mut out = [0f32];
            Stored::new(dtype, bytes, 1).unwrap().read(0, &mut out);
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
        assert!(Stored::new(Dtype::I64, &[0; 8], 1).is_none());
        assert!(Stored::new(Dtype::F32, &[0; 3], 1).is_none());
    }

    #[test]
    fn rows_have_factors() {
        let row = |factor: f32, numbers: [u8; 3]| [&factor.to_le_bytes()[..], &numbers].concat();
        let bytes = [row(0.5, [1, 0xff, 4]), row(-2.0, [3, 0, 0x80])].concat();
        let rows = StoredType::Rows(MatrixType::Int8(Rotation::None));
        assert_eq!(rows.bytes(&[2, 3]), Some(bytes.len()));
        let stored = Stored::new(rows, &bytes, 6).unwrap();
        let mut all = [0f32; 6];
        stored.read(0, &mut all);
        assert_eq!(all, [0.5, -0.5, 2.0, -6.0, 0.0, 256.0]);
        let mut part = [f16::ZERO; 3];
        stored.read(2, &mut part);
        assert_eq!(part.map(f16::to_f32), [2.0, -6.0, 0.0]);
        assert!(stored.has_finite_scales());
        let nan = row(f32::NAN, [0; 3]);
        assert!(!Stored::new(rows, &nan, 3).unwrap().has_finite_scales());
        for (bytes, elements) in [(&bytes[..13], 6), (&bytes[..], 7), (&bytes[..], 5), (&[][..], 1)] {
            assert!(Stored::new(rows, bytes, elements).is_none(), "{elements}");
        }
    }

    #[test]
    fn chunks_and_parts_are_contiguous() {
        let halves: Vec<f16> = (0..3000).map(|i| f16::from_f32(i as f32)).collect();
        let bytes: Vec<u8> = halves.iter().flat_map(|v| v.to_le_bytes()).collect();
        let stored = Stored::new(Dtype::F16, &bytes, 3000).unwrap();
        let (mut same, mut wide) = (vec![f16::ZERO; 3000], vec![0f32; 3000]);
        for start in (0..3000).step_by(750) {
            stored.read(start, &mut same[start..start + 750]);
            stored.read(start, &mut wide[start..start + 750]);
        }
        assert_eq!(same, halves);
        assert!(wide.iter().enumerate().all(|(i, &value)| value == f16::from_f32(i as f32).to_f32()));
    }
}
