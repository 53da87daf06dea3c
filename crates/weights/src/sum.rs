//! The sum of two sources: weights that are stored as differences from another network's.

use std::borrow::Cow;

use safetensors::Dtype;

use crate::error::{Error, Result};
use crate::source::{ParamData, ParamInfo, ParamSource};

/// Tensors of one source, each with the tensor of the same name and shape of another one added, if there is one. Sums are
/// f32.
pub struct Sum<A, B> {
    differences: A,
    base: B,
}

impl<A: ParamSource, B: ParamSource> Sum<A, B> {
    /// The tensors of `differences` added to those of `base`.
    pub fn new(differences: A, base: B) -> Self {
        Self { differences, base }
    }

    /// Whether `base` has a tensor for `key` of this shape.
    fn has_base(&self, key: &str, shape: &[usize]) -> bool {
        self.base.info(key).is_some_and(|info| info.shape == shape)
    }
}

impl<A: ParamSource, B: ParamSource> ParamSource for Sum<A, B> {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        let info = self.differences.info(key)?;
        let is_sum = self.has_base(key, &info.shape);
        Some(if is_sum { ParamInfo { dtype: Dtype::F32.into(), ..info } } else { info })
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let Some(difference) = self.differences.data(key)? else { return Ok(None) };
        if !self.has_base(key, &difference.info.shape) {
            return Ok(Some(difference));
        }
        let Some(base) = self.base.data(key)? else { return Ok(Some(difference)) };
        let wrong = |origin: String, data: &ParamData<'_>| Error::StoredDType {
            origin,
            key: key.into(),
            found: format!("{:?}", data.info.dtype),
        };
        let values = difference.to_f32().ok_or_else(|| wrong(self.differences.origin(key), &difference))?;
        let others = base.to_f32().ok_or_else(|| wrong(self.base.origin(key), &base))?;
        let bytes = values.iter().zip(others).flat_map(|(a, b)| (a + b).to_le_bytes()).collect();
        let info = ParamInfo { shape: difference.info.shape.clone(), dtype: Dtype::F32.into() };
        Ok(Some(ParamData { info, bytes: Cow::Owned(bytes) }))
    }

    fn release(&self, key: &str) {
        self.differences.release(key);
        self.base.release(key);
    }

    fn origin(&self, key: &str) -> String {
        self.differences.origin(key)
    }

    fn keys(&self) -> Vec<String> {
        self.differences.keys()
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Tensor};

    use super::*;
    use crate::source::MapSource;

    #[test]
    fn tensors_of_both_are_added_and_others_stay() {
        let source = |all: &[(&str, &[f32])]| {
            all.iter()
                .map(|(key, values)| (key.to_string(), Tensor::new(*values, &Device::Cpu).unwrap()))
                .collect::<MapSource>()
        };
        let sum = Sum::new(
            source(&[("a", &[1.0, 2.0]), ("own", &[5.0]), ("wide", &[1.0, 1.0])]),
            source(&[("a", &[0.25, -2.0]), ("wide", &[1.0]), ("other", &[3.0])]),
        );
        let values = |key: &str| sum.data(key).unwrap().and_then(|data| data.to_f32());
        assert_eq!(values("a"), Some(vec![1.25, 0.0]));
        assert_eq!(values("own"), Some(vec![5.0]));
        assert_eq!(values("wide"), Some(vec![1.0, 1.0]));
        assert_eq!(values("other"), None);
    }
}
