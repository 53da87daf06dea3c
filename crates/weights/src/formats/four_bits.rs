//! The 4-bit weights of bitsandbytes: NF4 and FP4.
//!
//! `x.weight` has the codes of all elements in row-major order, two in a byte. `x.weight.absmax` has the largest magnitude of each
//! block of them. These may be quantized as well ("double quantization"): bytes that are indices of `nested_quant_map`, times
//! `nested_absmax` of their own blocks, plus an offset. The rest is JSON in `x.weight.quant_state.bitsandbytes__nf4`, or `__fp4`
//! (`QuantState.as_dict` in bitsandbytes' `functional.py`).
//!
//! Where blocks divide the rows, elements are read as [`BlockType`]'s blocks of 64, with the codes bit by bit and f32
//! magnitudes. Others are read as f32.

use std::borrow::Cow;
use std::ops::Range;

use kiln_ops::BlockType;
use safetensors::Dtype;
use serde::Deserialize;

use super::packed::Found;
use crate::error::{Error, Result};
use crate::source::{ParamData, ParamInfo, ParamSource};
use crate::stored_type::StoredType;

/// The endings of the tensors with the rest, and the types.
const STATES: [(&str, BlockType); 2] =
    [(".quant_state.bitsandbytes__nf4", BlockType::NF4), (".quant_state.bitsandbytes__fp4", BlockType::FP4)];
/// The endings of the other tensors of a weight.
const OTHERS: [&str; 4] = [".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"];
/// Bytes of the JSON.
const MAX_BYTES: usize = 1 << 12;
/// Entries of the table of quantized magnitudes.
const NESTED_VALUES: usize = 256;

/// A weight of 4-bit codes.
pub(super) struct FourBits {
    kind: BlockType,
    shape: Vec<usize>,
    /// Elements of a block in the file.
    block: usize,
    absmax: String,
    nested: Option<Nested>,
}

/// How magnitudes are quantized.
struct Nested {
    values: Vec<f32>,
    absmax: Vec<f32>,
    block: usize,
    offset: f32,
}

/// The rest of a weight's description.
#[derive(Deserialize)]
struct State {
    blocksize: usize,
    shape: Vec<usize>,
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

impl FourBits {
    /// The weight that the tensor `key` describes, with its name, if `key` describes one.
    ///
    /// # Errors
    /// The problem, if tensors of the weight are missing or wrong.
    pub(super) fn find(source: &dyn ParamSource, key: &str) -> Found<Option<(String, Self)>> {
        let Some((weight, kind)) = STATES.iter().find_map(|(ending, kind)| Some((key.strip_suffix(ending)?, *kind)))
        else {
            return Ok(None);
        };
        let data = source.data(key).ok().flatten();
        let text = data.as_ref().map(|data| &*data.bytes).filter(|bytes| bytes.len() <= MAX_BYTES);
        let state: Option<State> = text.and_then(|text| serde_json::from_slice(text).ok());
        let State { blocksize: block, shape, nested_blocksize, nested_offset } =
            state.ok_or_else(|| format!("has no valid JSON with a block size and a shape in tensor `{key}`"))?;
        let elements = shape.iter().try_fold(1usize, |product, &dim| product.checked_mul(dim)).filter(|&all| all > 0);
        let (Some(elements), true) = (elements, block.is_power_of_two()) else {
            return Err(format!("gives `{weight}` the shape {shape:?} and blocks of {block} in tensor `{key}`"));
        };
        let codes = source.info(weight).and_then(|info| info.dtype.bytes(&info.shape));
        expect(weight, "bytes of codes", codes, elements.div_ceil(2))?;
        let blocks = elements.div_ceil(block);
        let name = |ending: &str| format!("{weight}{ending}");
        let numbers = |ending: &str| source.data(&name(ending)).ok().flatten().and_then(|data| data.to_f32());
        let table = numbers(".quant_map");
        expect(&name(".quant_map"), "numbers", table.as_ref().map(Vec::len), 16)?;
        if table.is_some_and(|table| !is_table(&table, kind)) {
            return Err(format!("has a table in `{weight}.quant_map` that is not that of {kind:?}"));
        }
        let absmax = name(".absmax");
        let count = source.info(&absmax).map(|info| (info.shape.iter().product(), info.dtype));
        expect(&absmax, "magnitudes of blocks", count.map(|(count, _)| count), blocks)?;
        let dtype = count.map(|(_, dtype)| dtype);
        let nested = match (nested_blocksize, nested_offset) {
            (Some(size), Some(offset)) if size > 0 && offset.is_finite() => {
                let (values, absmax) = (numbers(".nested_quant_map"), numbers(".nested_absmax"));
                let count = |numbers: &Option<Vec<f32>>| numbers.as_ref().map(Vec::len);
                expect(&name(".nested_quant_map"), "numbers", count(&values), NESTED_VALUES)?;
                expect(&name(".nested_absmax"), "numbers", count(&absmax), blocks.div_ceil(size))?;
                let (values, absmax) = (values.unwrap_or_default(), absmax.unwrap_or_default());
                if values.iter().chain(&absmax).any(|value| !value.is_finite()) {
                    return Err(format!("has nested scales of `{weight}` that are infinite or no numbers"));
                }
                Some(Nested { values, absmax, block: size, offset })
            }
            (None, None) => None,
            _ => return Err(format!("has an incomplete or wrong double quantization in tensor `{key}`")),
        };
        let expected = if nested.is_some() { Dtype::U8 } else { Dtype::F32 };
        if dtype != Some(expected.into()) {
            let found = dtype.map_or("nothing".into(), |dtype| dtype.to_string());
            return Err(format!("stores `{absmax}` as {found}, expected {expected:?}"));
        }
        Ok(Some((weight.to_string(), Self { kind, shape, block, absmax, nested })))
    }

    /// The name of the magnitudes.
    pub(super) fn scales(&self) -> &str {
        &self.absmax
    }

    /// Whether blocks of the file divide into blocks of 64 that divide the rows.
    fn has_blocks(&self) -> bool {
        let size = self.kind.elements();
        self.block.is_multiple_of(size) && self.shape.last().is_some_and(|row| row.is_multiple_of(size))
    }

    /// The shape and type.
    pub(super) fn info(&self) -> ParamInfo {
        let dtype = if self.has_blocks() { StoredType::Blocks(self.kind) } else { Dtype::F32.into() };
        ParamInfo { shape: self.shape.clone(), dtype }
    }

    /// Some rows of the weight `key`. `None` if there are no such rows.
    ///
    /// # Errors
    /// Errors of the file.
    pub(super) fn rows<'a>(
        &self,
        source: &'a dyn ParamSource,
        key: &str,
        rows: Range<usize>,
    ) -> Result<Option<ParamData<'a>>> {
        let info = self.info();
        let Some((part, _)) = info.rows(&rows) else { return Ok(None) };
        let row: usize = self.shape.iter().skip(1).product();
        let elements = rows.start * row..rows.end * row;
        let missing = |key: &str| {
            let (origin, key) = (source.origin(key), key.to_string());
            Error::StoredDType { origin, key, found: "nothing".into() }
        };
        let codes = source.data(key)?.ok_or_else(|| missing(key))?.bytes;
        let absmax = source.data(&self.absmax)?.ok_or_else(|| missing(&self.absmax))?.bytes;
        let scale = |element: usize| self.magnitude(&absmax, element / self.block);
        let bytes = if self.has_blocks() {
            let size = self.kind.elements();
            let blocks = elements.len() / size;
            let mut bytes = Vec::with_capacity(blocks * self.kind.bytes());
            for first in elements.step_by(size) {
                bytes.extend(scale(first).to_le_bytes());
                bytes.extend_from_slice(codes.get(first / 2..(first + size) / 2).unwrap_or_default());
            }
            bytes
        } else {
            self.numbers(&codes, elements, scale)
        };
        Ok(Some(ParamData { info: part, bytes: Cow::Owned(bytes) }))
    }

    /// The elements as f32, for blocks that run across rows.
    fn numbers(&self, codes: &[u8], elements: Range<usize>, scale: impl Fn(usize) -> f32) -> Vec<u8> {
        let table = table(self.kind);
        let number = |i: usize| {
            let byte = codes.get(i / 2).copied().unwrap_or(0);
            let code = if i.is_multiple_of(2) { byte >> 4 } else { byte & 0xf };
            table[usize::from(code)] * scale(i)
        };
        elements.flat_map(|i| number(i).to_le_bytes()).collect()
    }

    /// The largest magnitude of a block of the file.
    fn magnitude(&self, absmax: &[u8], block: usize) -> f32 {
        match &self.nested {
            Some(nested) => {
                let code = absmax.get(block).copied().unwrap_or(0);
                let of_block = nested.absmax.get(block / nested.block).copied().unwrap_or(f32::NAN);
                nested.values.get(usize::from(code)).copied().unwrap_or(f32::NAN) * of_block + nested.offset
            }
            None => {
                let bytes = absmax.get(block * 4..).and_then(<[u8]>::first_chunk);
                bytes.map_or(f32::NAN, |bytes| f32::from_le_bytes(*bytes))
            }
        }
    }
}

/// The values of a type's codes.
fn table(kind: BlockType) -> [f32; 16] {
    let mut block = 1f32.to_le_bytes().to_vec();
    block.extend((0..32u8).map(|i| (i % 8 * 2) << 4 | (i % 8 * 2 + 1))); // codes 0 to 15, four times
    let mut table = [0f32; 16];
    kind.read(&block, 0, table.len(), |values| table.copy_from_slice(values));
    table
}

/// Whether a file's table is that of a type. FP4's zero has either sign.
fn is_table(found: &[f32], kind: BlockType) -> bool {
    found.iter().zip(table(kind)).all(|(found, expected)| (found - expected).abs() <= 1e-6)
}

/// Compares a count of what tensor `name` has.
fn expect(name: &str, what: &str, found: Option<usize>, expected: usize) -> Found<()> {
    match found {
        Some(found) if found == expected => Ok(()),
        Some(found) => Err(format!("has {found} {what} in tensor `{name}`, expected {expected}")),
        None => Err(format!("lacks tensor `{name}`: expected {expected} {what}")),
    }
}

/// Whether a tensor says how another one is stored.
pub(super) fn is_added(key: &str) -> bool {
    let is_state = STATES.iter().any(|(ending, _)| key.ends_with(ending));
    is_state || OTHERS.iter().any(|ending| key.strip_suffix(ending).is_some_and(|weight| weight.ends_with("weight")))
}
