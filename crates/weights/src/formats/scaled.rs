//! 8-bit floats with scales.
//!
//! A tensor `x.weight` of 8-bit floats may have one scale, or one for each row, in a separate tensor: `x.scale_weight`
//! in ComfyUI's older files, `x.weight_scale` in others. The weight is the product.

use std::borrow::Cow;
use std::ops::Range;

use safetensors::Dtype;

use crate::error::{Error, Result};
use crate::source::{ParamData, ParamInfo, ParamSource};
use crate::stored_type::StoredType;

/// The names of the scales of `x.weight`.
const NAMES: [&str; 2] = ["scale_weight", "weight_scale"];

/// The names of other tensors of such a layer: the scale of its input, its format, and the mark of a file with scales.
const OTHERS: [&str; 4] = ["scale_input", "input_scale", "comfy_quant", "scaled_fp8"];

/// A source in which some tensors have scales.
pub(super) struct Scaled(Box<dyn ParamSource>);

impl Scaled {
    /// Wraps a source that has scales, and returns any other source unchanged.
    pub(super) fn wrap(source: Box<dyn ParamSource>) -> Box<dyn ParamSource> {
        if source.keys().iter().any(|key| is_added(key)) { Box::new(Self(source)) } else { source }
    }

    /// The name of the tensor with the scales of `key`.
    fn factors(&self, key: &str, info: &ParamInfo) -> Option<String> {
        if !matches!(info.dtype, StoredType::Plain(Dtype::F8_E4M3 | Dtype::F8_E5M2)) {
            return None;
        }
        let module = below(key, "weight")?;
        NAMES.iter().map(|name| format!("{module}{name}")).find(|name| self.0.info(name).is_some())
    }
}

impl Scaled {
    /// `data`, rows `rows` of the `all` rows of the tensor `key`, times their scales, if the tensor has scales.
    fn scaled<'a>(&self, key: &str, data: ParamData<'a>, all: usize, rows: Range<usize>) -> Result<ParamData<'a>> {
        let Some(name) = self.factors(key, &data.info) else { return Ok(data) };
        let factors = self.0.data(&name)?.and_then(|factors| factors.to_f32()).unwrap_or_default();
        let mut values = data.to_f32().unwrap_or_default();
        let of_rows = if factors.len() == all { factors.get(rows.clone()) } else { None };
        let of_rows = of_rows.or_else(|| (factors.len() == 1).then_some(factors.as_slice()));
        let Some(of_rows) = of_rows.filter(|_| !values.is_empty()) else {
            let found = format!("{:?} with {} factors in `{name}`", data.info.dtype, factors.len());
            return Err(Error::StoredDType { origin: self.0.origin(key), key: key.to_string(), found });
        };
        let row = (values.len() / of_rows.len().max(1)).max(1);
        for (values, factor) in values.chunks_mut(row).zip(of_rows) {
            values.iter_mut().for_each(|value| *value *= factor);
        }
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let info = ParamInfo { dtype: Dtype::F32.into(), ..data.info };
        Ok(ParamData { info, bytes: Cow::Owned(bytes) })
    }
}

/// Whether a tensor says how another one is stored.
fn is_added(key: &str) -> bool {
    NAMES.iter().chain(&OTHERS).any(|name| below(key, name).is_some())
}

/// The part of `key` before `name`, including its dot.
fn below<'a>(key: &'a str, name: &str) -> Option<&'a str> {
    key.strip_suffix(name).filter(|module| module.is_empty() || module.ends_with('.'))
}

impl ParamSource for Scaled {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        let info = self.0.info(key)?;
        let dtype = if self.factors(key, &info).is_some() { Dtype::F32.into() } else { info.dtype };
        Some(ParamInfo { dtype, ..info })
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let Some(data) = self.0.data(key)? else { return Ok(None) };
        let rows = data.info.shape.first().copied().unwrap_or(1);
        self.scaled(key, data, rows, 0..rows).map(Some)
    }

    fn rows(&self, key: &str, rows: Range<usize>) -> Result<Option<ParamData<'_>>> {
        let Some(info) = self.0.info(key) else { return Ok(None) };
        let Some(data) = self.0.rows(key, rows.clone())? else { return Ok(None) };
        self.scaled(key, data, info.shape.first().copied().unwrap_or(1), rows).map(Some)
    }

    fn release(&self, key: &str) {
        self.0.release(key);
    }

    fn origin(&self, key: &str) -> String {
        self.0.origin(key)
    }

    fn keys(&self) -> Vec<String> {
        self.0.keys().into_iter().filter(|key| !is_added(key)).collect()
    }
}
