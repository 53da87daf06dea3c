//! 8-bit numbers with factors in a tensor of their own: one for the tensor, or one for each row.
//!
//! The factors of `x.weight` are `x.scale_weight` in ComfyUI's older files, `x.weight_scale` in others. The weight is the
//! product; integers may be rotated as well ([`Rotation`]). Here each row follows its factor, bit by bit as in the file.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;

use kiln_ops::{MatrixType, ROW_FACTOR, Rotation};
use safetensors::Dtype;

use super::layer_formats::LayerFormat;
use super::packed::Found;
use crate::error::{Error, Result};
use crate::source::{ParamData, ParamInfo, ParamSource};
use crate::stored_type::StoredType;

/// The names of the scales of `x.weight`.
const NAMES: [&str; 2] = ["scale_weight", "weight_scale"];

/// The names of other tensors of such a layer: the scale of its input, which only products in 8 bits need, its format, and the mark
/// of a file with scales.
const OTHERS: [&str; 4] = ["scale_input", "input_scale", "comfy_quant", "scaled_fp8"];

/// A weight with factors.
pub(super) struct FactorRows {
    /// The type of the rows.
    kind: MatrixType,
    /// The name of the factors.
    factors: String,
}

impl FactorRows {
    /// How the tensor `key` is stored, if it has factors. `formats` are those that the file names, by layer.
    ///
    /// # Errors
    /// The problem, if its factors are missing or wrong.
    pub(super) fn find(
        source: &dyn ParamSource,
        key: &str,
        formats: &HashMap<String, LayerFormat>,
    ) -> Found<Option<Self>> {
        let (Some(info), Some(module)) = (source.info(key), below(key, "weight")) else { return Ok(None) };
        let format = formats.get(module.strip_suffix('.').unwrap_or(module));
        let factors = NAMES.iter().map(|name| format!("{module}{name}")).find(|name| source.info(name).is_some());
        let kind = match (info.dtype, format) {
            (StoredType::Plain(Dtype::F8_E4M3), None | Some(LayerFormat::F8)) => MatrixType::F8,
            (StoredType::Plain(Dtype::F8_E5M2), None | Some(LayerFormat::F8)) => MatrixType::F8E5M2,
            (StoredType::Plain(Dtype::I8), Some(LayerFormat::Int8(rotation))) => MatrixType::Int8(*rotation),
            (StoredType::Plain(Dtype::I8), None) if factors.is_some() => {
                return Err(format!(
                    "stores `{key}` as I8 with scales, but does not say in which format; use a file with ComfyUI's \
                     `comfy_quant` tensors"
                ));
            }
            (dtype, Some(format)) => {
                let expected = format.dtypes();
                return Err(format!("stores `{key}` as {dtype}, expected {expected} for its format {}", format.name()));
            }
            _ => return Ok(None),
        };
        let Some(factors) = factors else {
            // Files with the mark of scales may have layers without them. A layer with a format has them.
            let missing = || format!("lacks the scales of `{key}`: expected a tensor `{module}{}`", NAMES[1]);
            return if format.is_some() { Err(missing()) } else { Ok(None) };
        };
        let rows = info.shape.first().copied().unwrap_or(1);
        check(source, &factors, rows)?;
        let row: usize = info.shape.iter().skip(1).product();
        if let MatrixType::Int8(rotation) = kind
            && !row.is_multiple_of(rotation.group())
        {
            let group = rotation.group();
            return Err(format!("rotates groups of {group} in `{key}`, whose rows have {row} elements"));
        }
        Ok(Some(Self { kind, factors }))
    }

    /// The shape and type, for those of the numbers alone.
    pub(super) fn info(&self, stored: ParamInfo) -> ParamInfo {
        ParamInfo { dtype: StoredType::Rows(self.kind), ..stored }
    }

    /// Some rows of the tensor `key`, with their factors.
    ///
    /// # Errors
    /// Errors of the file.
    pub(super) fn rows<'a>(
        &self,
        source: &'a dyn ParamSource,
        key: &str,
        rows: Range<usize>,
    ) -> Result<Option<ParamData<'a>>> {
        let is_scalar = source.info(key).is_some_and(|info| info.shape.is_empty());
        let data = if is_scalar { source.data(key)? } else { source.rows(key, rows.clone())? };
        let Some(data) = data else { return Ok(None) };
        let factors = source.data(&self.factors)?.and_then(|factors| factors.to_f32()).unwrap_or_default();
        let of_rows = match factors.as_slice() {
            [one] => vec![*one; rows.len()],
            all => all.get(rows.clone()).unwrap_or_default().to_vec(),
        };
        if of_rows.len() != rows.len() {
            let (origin, key) = (source.origin(key), key.to_string());
            let found = format!("{} with {} factors", data.info.dtype, factors.len());
            return Err(Error::StoredDType { origin, key, found });
        }
        let row = data.bytes.len().checked_div(rows.len()).unwrap_or(0);
        let mut bytes = Vec::with_capacity(data.bytes.len() + ROW_FACTOR * rows.len());
        for (i, factor) in of_rows.iter().enumerate() {
            bytes.extend(factor.to_le_bytes());
            bytes.extend_from_slice(&data.bytes[i * row..(i + 1) * row]); // rows.len() times row bytes
        }
        Ok(Some(ParamData { info: self.info(data.info), bytes: Cow::Owned(bytes) }))
    }
}

/// Checks the factors `name` of a tensor of `rows` rows.
fn check(source: &dyn ParamSource, name: &str, rows: usize) -> Found<()> {
    let data = source.data(name).ok().flatten();
    let found = data.as_ref().map_or("nothing".into(), |data| format!("{} {:?}", data.info.dtype, data.info.shape));
    let factors = data.and_then(|data| data.to_f32()).filter(|factors| factors.len() == 1 || factors.len() == rows);
    let Some(factors) = factors else {
        return Err(format!("has {found} as the scales `{name}`, expected 1 or {rows} numbers"));
    };
    match factors.iter().position(|factor| !factor.is_finite() || *factor < 0.0) {
        Some(i) => Err(format!("has {} as scale {i} of `{name}`, expected a finite number from 0 on", factors[i])),
        None => Ok(()),
    }
}

/// Whether a tensor says how another one is stored.
pub(super) fn is_added(key: &str) -> bool {
    NAMES.iter().chain(&OTHERS).any(|name| below(key, name).is_some())
}

/// The part of `key` before `name`, including its dot.
fn below<'a>(key: &'a str, name: &str) -> Option<&'a str> {
    key.strip_suffix(name).filter(|module| module.is_empty() || module.ends_with('.'))
}

impl LayerFormat {
    /// The name, as files have it.
    fn name(self) -> &'static str {
        match self {
            Self::F8 => "float8",
            Self::Int8(Rotation::None) => "int8_tensorwise",
            Self::Int8(_) => "int8_convrot",
        }
    }

    /// The types of its numbers, for messages.
    fn dtypes(self) -> &'static str {
        match self {
            Self::F8 => "F8_E4M3 or F8_E5M2",
            Self::Int8(_) => "I8",
        }
    }
}
