//! Matrices of linear layers in a storage type that differs from the activations': blocks, 8-bit floats or integers with a
//! factor for each row, or the other half precision.
//!
//! Such a matrix `(n, k)` stays in that type in memory, row by row. [`crate::linear`] dequantizes it when it runs: on
//! the CPU a band of columns at a time, just before a product reads them, on a GPU the whole matrix. The result has the
//! same bits as with the dequantized matrix in the activations' type: each element is rounded to that type once, and
//! the products are the same.

mod blocks;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod f8;
mod int8_rows;
mod table_blocks;
#[cfg(test)]
mod tests;
mod workspace;

use std::fmt;

use candle_core::{Device, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::cpu::{Bytes, Element};
use crate::error::Result;
use crate::packing::Weight;
pub use blocks::BlockType;
pub use f8::{f8_e4m3, f8_e5m2, to_f8_e4m3};
pub use int8_rows::Rotation;
pub(crate) use workspace::band;
pub use workspace::linear_workspace;

/// The storage type of a matrix. `Display` writes its name: `f8`, `q4_k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixType {
    /// IEEE half precision.
    F16,
    /// The upper 16 bits of an f32.
    Bf16,
    /// 8-bit floats (`F8_E4M3`), each row after its factor, an f32.
    F8,
    /// 8-bit floats (`F8_E5M2`), each row after its factor, an f32.
    F8E5M2,
    /// 8-bit integers, each row after its factor, an f32.
    Int8(Rotation),
    /// Blocks with scales of their own.
    Blocks(BlockType),
}

/// Bytes of the factor before a row of 8-bit numbers.
pub const ROW_FACTOR: usize = 4;

/// Elements that are converted at a time: a buffer in the L1 cache.
const CHUNK: usize = 256;

impl MatrixType {
    /// Bytes of a row of `k` elements. `None` where the type cannot store such rows: they are no whole blocks, or
    /// factors would not be aligned.
    pub fn row_bytes(self, k: usize) -> Option<usize> {
        match self {
            Self::F16 | Self::Bf16 => k.checked_mul(2),
            Self::F8 | Self::F8E5M2 => k.is_multiple_of(ROW_FACTOR).then(|| k.checked_add(ROW_FACTOR))?,
            Self::Int8(rotation) => {
                let fits = k.is_multiple_of(ROW_FACTOR) && k.is_multiple_of(rotation.group());
                fits.then(|| k.checked_add(ROW_FACTOR))?
            }
            Self::Blocks(block) => {
                k.is_multiple_of(block.elements()).then(|| (k / block.elements()).checked_mul(block.bytes()))?
            }
        }
    }

    /// Whether each row begins with its factor.
    pub fn has_row_factors(self) -> bool {
        matches!(self, Self::F8 | Self::F8E5M2 | Self::Int8(_))
    }

    /// Dequantizes a row, from element `start` on. Elements beyond the end of the row leave `out` unchanged.
    pub(crate) fn read<T: Element>(self, row: &[u8], start: usize, out: &mut [T]) {
        let (count, mut rest) = (out.len(), out);
        self.each(row, start, count, |values| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(values.len());
            part.iter_mut().zip(values).for_each(|(to, from)| *to = T::from_f32(*from));
            rest = after;
        });
    }

    /// Passes `count` elements of a row, from `start` on, to `put`, in parts. Elements beyond the end of the row are left
    /// out.
    pub fn each(self, row: &[u8], start: usize, count: usize, mut put: impl FnMut(&[f32])) {
        let mut values = [0f32; CHUNK];
        match self {
            Self::Blocks(block) => block.read(row, start, count, put),
            Self::F8 | Self::F8E5M2 | Self::Int8(_) => {
                let Some((factor, numbers)) = row.split_first_chunk::<ROW_FACTOR>() else { return };
                let factor = f32::from_le_bytes(*factor);
                let value = match self {
                    Self::Int8(rotation) => {
                        return int8_rows::read(rotation, factor, numbers, start, count, &mut put);
                    }
                    Self::F8E5M2 => f8_e5m2,
                    _ => f8_e4m3,
                };
                for bytes in numbers.get(start..start + count).unwrap_or_default().chunks(CHUNK) {
                    values.iter_mut().zip(bytes).for_each(|(to, &bits)| *to = value(bits) * factor);
                    put(&values[..bytes.len()]);
                }
            }
            Self::F16 | Self::Bf16 => {
                let halves = row.get(2 * start..2 * (start + count)).unwrap_or_default();
                for bytes in halves.chunks(2 * CHUNK) {
                    let values = &mut values[..bytes.len() / 2];
                    let bits = bytes.as_chunks::<2>().0.iter().map(|&bytes| u16::from_le_bytes(bytes));
                    if self == Self::F16 {
                        let mut halves = [f16::ZERO; CHUNK];
                        halves.iter_mut().zip(bits).for_each(|(half, bits)| *half = f16::from_bits(bits));
                        halves[..values.len()].convert_to_f32_slice(values);
                    } else {
                        values.iter_mut().zip(bits).for_each(|(value, bits)| *value = bf16::from_bits(bits).to_f32());
                    }
                    put(values);
                }
            }
        }
    }
}

impl fmt::Display for MatrixType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::F16 => f.write_str("f16"),
            Self::Bf16 => f.write_str("bf16"),
            Self::F8 => f.write_str("f8"),
            Self::F8E5M2 => f.write_str("f8_e5m2"),
            Self::Int8(Rotation::None) => f.write_str("int8"),
            Self::Int8(rotation) => write!(f, "int8_convrot{}", rotation.group()),
            Self::Blocks(block) => f.write_str(&format!("{block:?}").to_lowercase()),
        }
    }
}

/// The position of the rows of a stored matrix in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// The storage type.
    pub kind: MatrixType,
    /// Contiguous rows: those of one layer, where several layers are one matrix.
    pub part: usize,
    /// Bytes from the start of one part to the start of the next.
    pub stride: usize,
}

impl Rows {
    /// The bytes of a row.
    fn of<'a>(&self, bytes: &'a [u8], row: usize, row_bytes: usize) -> &'a [u8] {
        let start = row / self.part * self.stride + row % self.part * row_bytes;
        bytes.get(start..start + row_bytes).unwrap_or_default()
    }
}

/// A stored matrix in CPU memory.
pub(crate) struct StoredMatrix<'a> {
    bytes: Bytes<'a>,
    rows: Rows,
    k: usize,
    row_bytes: usize,
}

impl<'a> StoredMatrix<'a> {
    /// The matrix of a weight. `None` where it is stored in the activations' type.
    pub(crate) fn of(weight: &'a Weight) -> Result<Option<Self>> {
        let (Some(rows), [_, _, _, k]) = (weight.stored_rows(), weight.shape()) else { return Ok(None) };
        let Some(row_bytes) = rows.kind.row_bytes(k) else { return Ok(None) };
        Ok(Some(Self { bytes: Bytes::new(weight.tensor())?, rows, k, row_bytes }))
    }

    /// Dequantizes elements from index `start` of the row-major order on, none of them beyond the end of a row.
    pub(crate) fn read<T: Element>(&self, start: usize, out: &mut [T]) {
        let (row, start) = (start / self.k.max(1), start % self.k.max(1));
        self.rows.kind.read(self.rows.of(&self.bytes, row, self.row_bytes), start, out);
    }
}

/// The matrix `(n, k)` of a weight, dequantized into the type and on the device of its tensor, for references. A copy
/// goes through host memory.
pub(crate) fn dense(weight: &Weight) -> Result<Tensor> {
    fn numbers<T: Element>(weight: &Weight, [n, k]: [usize; 2]) -> Result<Tensor> {
        let mut values = vec![T::ZERO; n * k];
        if let Some(matrix) = StoredMatrix::of(weight)? {
            values.chunks_exact_mut(k.max(1)).enumerate().for_each(|(row, values)| matrix.read(row * k, values));
        }
        Ok(Tensor::from_vec(values, (n, k), &Device::Cpu)?)
    }
    let [n, _, _, k] = weight.shape();
    if weight.stored_rows().is_none() {
        return Ok(weight.tensor().reshape((n, k))?);
    }
    let here = weight.on(&Device::Cpu)?;
    let dense = dispatch!("linear", "weight", here.tensor().dtype(), numbers(&here, [n, k]))?;
    Ok(dense.to_device(weight.tensor().device())?)
}
