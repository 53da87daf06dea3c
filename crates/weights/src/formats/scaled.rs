//! 8-bit floats with scales.
//!
//! A tensor `x.weight` of 8-bit floats may have one scale, or one for each row, in a separate tensor: `x.scale_weight`
//! in ComfyUI's files, `x.weight_scale` in others. The weight is the product.

use std::borrow::Cow;

use safetensors::Dtype;

use crate::error::{Error, Result};
use crate::source::{ParamData, ParamInfo, ParamSource};
use crate::stored_type::StoredType;

/// The names of the scales of `x.weight`.
const NAMES: [&str; 2] = ["scale_weight", "weight_scale"];

/// A source in which some tensors have scales.
pub(super) struct Scaled(Box<dyn ParamSource>);

impl Scaled {
    /// Wraps a source that has scales, and returns any other source unchanged.
    pub(super) fn wrap(source: Box<dyn ParamSource>) -> Box<dyn ParamSource> {
        let is_factor = |key: &String| NAMES.iter().any(|name| below(key, name).is_some());
        if source.keys().iter().any(is_factor) { Box::new(Self(source)) } else { source }
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
        let Some(name) = self.factors(key, &data.info) else { return Ok(Some(data)) };
        let factors = self.0.data(&name)?.and_then(|factors| factors.to_f32()).unwrap_or_default();
        let mut values = data.to_f32().unwrap_or_default();
        let rows = data.info.shape.first().copied().unwrap_or(1);
        if values.is_empty() || (factors.len() != 1 && factors.len() != rows) {
            let found = format!("{:?} with {} factors in `{name}`", data.info.dtype, factors.len());
            return Err(Error::StoredDType { origin: self.0.origin(key), key: key.to_string(), found });
        }
        let row = values.len() / factors.len();
        for (values, factor) in values.chunks_mut(row).zip(&factors) {
            values.iter_mut().for_each(|value| *value *= factor);
        }
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let info = ParamInfo { dtype: Dtype::F32.into(), ..data.info };
        Ok(Some(ParamData { info, bytes: Cow::Owned(bytes) }))
    }

    fn release(&self, key: &str) {
        self.0.release(key);
    }

    fn origin(&self, key: &str) -> String {
        self.0.origin(key)
    }

    fn keys(&self) -> Vec<String> {
        let is_factor = |key: &String| NAMES.iter().any(|name| below(key, name).is_some()) || key == "scaled_fp8";
        self.0.keys().into_iter().filter(|key| !is_factor(key)).collect()
    }
}
