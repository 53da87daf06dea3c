//! Packs matrices into a slab in which their rows have their own type.

use candle_core::quantized::QTensor;
use candle_core::{Device, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use kiln_ops::{MatrixType, ROW_FACTOR, to_f8_e4m3};
use rayon::prelude::*;
use safetensors::Dtype;

use crate::element::{Element, Stored};
use crate::error::{Error, Result};
use crate::param_spec::StoredRows;
use crate::stored_type::StoredType;

/// The number of elements that are converted to rows at a time, unless [`EVEN`] rows have more. It is small compared
/// with the smallest ring.
const PART: usize = 1 << 12;

/// In every group of this many rows, the first begins at a multiple of a slab's element size, for any row size.
const EVEN: usize = 4;

/// The largest 8-bit float (E4M3).
const F8_MAX: f32 = 448.0;

/// Writes all rows to `place`, and leaves its other bytes unchanged. If `bytes`, elements of the type `dtype`, already
/// has rows of the requested type, they are copied bit by bit. `stored`, which is the same tensor, provides the values
/// of others.
pub(crate) fn store<T: Element>(
    rows: StoredRows,
    dtype: StoredType,
    bytes: &[u8],
    stored: &Stored<'_>,
    place: &mut [T],
) -> Result<()> {
    let StoredRows { kind, n, k, row_bytes } = rows;
    let count = (PART / k.max(1)).next_multiple_of(EVEN).max(EVEN);
    let part = (count * row_bytes / size_of::<T>()).max(1);
    let place = &mut place[..(n * row_bytes).div_ceil(size_of::<T>())];
    place.par_chunks_mut(part).enumerate().try_for_each(|(i, place)| {
        let (first, count) = (i * count, count.min(n - i * count));
        let mut encoded = if copied(kind, dtype) {
            bytes[first * row_bytes..(first + count) * row_bytes].to_vec()
        } else if dtype.matrix() == Some(kind) {
            // A file's plain 8-bit floats: rows with the factor 1.
            let rows = bytes[first * k..(first + count) * k].chunks_exact(k.max(1));
            rows.flat_map(|row| [&1f32.to_le_bytes()[..], row].concat()).collect()
        } else {
            let mut values = vec![0f32; count * k];
            stored.read(first * k, &mut values);
            encode(kind, values, k)?
        };
        encoded.resize(encoded.len().next_multiple_of(size_of::<T>()), 0);
        T::copy(&encoded, place);
        Ok(())
    })
}

/// Whether rows of a file are already in the slab's type.
fn copied(kind: MatrixType, dtype: StoredType) -> bool {
    match kind {
        MatrixType::F16 => dtype == Dtype::F16.into(),
        MatrixType::Bf16 => dtype == Dtype::BF16.into(),
        MatrixType::F8 | MatrixType::F8E5M2 | MatrixType::Int8(_) => dtype == StoredType::Rows(kind),
        MatrixType::Blocks(block) => dtype == StoredType::Blocks(block),
    }
}

/// Rows of `k` values. The factor of each row of 8-bit floats maps its largest value to the largest float.
fn encode(kind: MatrixType, values: Vec<f32>, k: usize) -> Result<Vec<u8>> {
    let read_only = || {
        let message = format!("numbers cannot be converted to {kind}, which is for weights that are stored so");
        Error::Ops(kiln_ops::Error::Config { op: "weight", message })
    };
    Ok(match kind {
        MatrixType::F16 => {
            let mut halves = vec![f16::ZERO; values.len()];
            halves.convert_from_f32_slice(&values);
            halves.iter().flat_map(|half| half.to_le_bytes()).collect()
        }
        MatrixType::Bf16 => {
            let mut halves = vec![bf16::ZERO; values.len()];
            Element::round(&values, &mut halves);
            halves.iter().flat_map(|half| half.to_le_bytes()).collect()
        }
        MatrixType::F8 => {
            let mut encoded = Vec::with_capacity(values.len() / k.max(1) * (k + ROW_FACTOR));
            for row in values.chunks_exact(k.max(1)) {
                let largest = row.iter().fold(0f32, |largest, value| largest.max(value.abs()));
                let factor = if largest > 0.0 && largest.is_finite() { largest / F8_MAX } else { 1.0 };
                encoded.extend(factor.to_le_bytes());
                encoded.extend(row.iter().map(|value| to_f8_e4m3(value / factor)));
            }
            encoded
        }
        MatrixType::F8E5M2 | MatrixType::Int8(_) => return Err(read_only()),
        MatrixType::Blocks(block) => {
            // The quantizers are candle's.
            let shape = (values.len() / k.max(1), k);
            let ggml = block.quantizer().ok_or_else(read_only)?;
            QTensor::quantize(&Tensor::from_vec(values, shape, &Device::Cpu)?, ggml)?.data()?.into_owned()
        }
    })
}
