//! Matrices of linear layers that are stored in other types than activations have: as blocks of ggml, as 8-bit floats
//! with a factor for each row, or as the other half precision.
//!
//! Such a matrix `(n, k)` stays so in memory, row after row, and [`crate::linear`] makes numbers of it when it runs: on
//! the processor a band of columns at a time, just before a product reads them, on a card the whole matrix. Its result
//! has the bits that it has with the same numbers stored in the activations' type: each is rounded into that type once,
//! and the products are the same.

mod blocks;
#[cfg(feature = "cuda")]
pub(crate) mod cuda;
mod f8;
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
pub use f8::{f8_e4m3, to_f8_e4m3};
pub(crate) use workspace::band;
pub use workspace::linear_workspace;

/// How a matrix is stored where that is not the activations' type. `Display` writes its name: `f8`, `q4_k`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MatrixType {
    /// IEEE's 16 bits.
    F16,
    /// The upper 16 bits of an f32.
    Bf16,
    /// 8 bits (`F8_E4M3`), each row behind a factor of its own, an f32.
    F8,
    /// Blocks of ggml.
    Blocks(BlockType),
}

/// Bytes of the factor before a row of 8-bit floats.
pub const F8_FACTOR: usize = 4;

/// Numbers that are made at a time: a buffer in the first-level cache.
const CHUNK: usize = 256;

impl MatrixType {
    /// Bytes of a row of `k` numbers. `None` where rows cannot be stored so: blocks do not divide them, or factors
    /// would not lie at multiples of their size.
    pub fn row_bytes(self, k: usize) -> Option<usize> {
        match self {
            Self::F16 | Self::Bf16 => k.checked_mul(2),
            Self::F8 => k.is_multiple_of(F8_FACTOR).then(|| k.checked_add(F8_FACTOR))?,
            Self::Blocks(block) => {
                k.is_multiple_of(block.elements()).then(|| (k / block.elements()).checked_mul(block.bytes()))?
            }
        }
    }

    /// Makes numbers of a row's bytes, from number `start` on. What is not there leaves `out` as it was.
    pub(crate) fn read<T: Element>(self, row: &[u8], start: usize, out: &mut [T]) {
        let (count, mut rest) = (out.len(), out);
        let mut put = |values: &[f32]| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(values.len());
            part.iter_mut().zip(values).for_each(|(to, from)| *to = T::from_f32(*from));
            rest = after;
        };
        let mut values = [0f32; CHUNK];
        match self {
            Self::Blocks(block) => block.read(row, start, count, put),
            Self::F8 => {
                let Some((factor, numbers)) = row.split_first_chunk::<F8_FACTOR>() else { return };
                let factor = f32::from_le_bytes(*factor);
                for bytes in numbers.get(start..start + count).unwrap_or_default().chunks(CHUNK) {
                    values.iter_mut().zip(bytes).for_each(|(value, &bits)| *value = f8_e4m3(bits) * factor);
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
            Self::Blocks(block) => f.write_str(&format!("{block:?}").to_lowercase()),
        }
    }
}

/// Where the rows of a stored matrix lie in their memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// How each is stored.
    pub kind: MatrixType,
    /// Rows that lie without a gap: of one layer, where several are one matrix.
    pub part: usize,
    /// Bytes from the start of one part to the start of the next.
    pub stride: usize,
}

impl Rows {
    /// A row's bytes.
    fn of<'a>(&self, bytes: &'a [u8], row: usize, row_bytes: usize) -> &'a [u8] {
        let start = row / self.part * self.stride + row % self.part * row_bytes;
        bytes.get(start..start + row_bytes).unwrap_or_default()
    }
}

/// A stored matrix in the processor's memory.
pub(crate) struct StoredMatrix<'a> {
    bytes: Bytes<'a>,
    rows: Rows,
    k: usize,
    row_bytes: usize,
}

impl<'a> StoredMatrix<'a> {
    /// The matrix of a weight; `None` where it is stored in the activations' type.
    pub(crate) fn of(weight: &'a Weight) -> Result<Option<Self>> {
        let (Some(rows), [_, _, _, k]) = (weight.stored_rows(), weight.shape()) else { return Ok(None) };
        let Some(row_bytes) = rows.kind.row_bytes(k) else { return Ok(None) };
        Ok(Some(Self { bytes: Bytes::new(weight.tensor())?, rows, k, row_bytes }))
    }

    /// Makes numbers, from number `start` of the matrix's row-major order on, none of them beyond the end of a row.
    pub(crate) fn read<T: Element>(&self, start: usize, out: &mut [T]) {
        let (row, start) = (start / self.k.max(1), start % self.k.max(1));
        self.rows.kind.read(self.rows.of(&self.bytes, row, self.row_bytes), start, out);
    }
}

/// The matrix `(n, k)` of a weight in the type of its memory, on its memory's device: what operators without a way of
/// their own read. A copy goes through the host's memory.
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
