//! A tensor of a LoRA file. Its name and shape are known, and its elements are read when a weight is merged.

use std::sync::Arc;

use candle_core::{Device, Tensor};
use safetensors::Dtype;

use crate::error::{Error, Result};
use crate::source::ParamSource;

/// A tensor of a file, without its elements.
#[derive(Clone)]
pub(super) struct Factor {
    source: Arc<dyn ParamSource>,
    key: String,
    shape: Vec<usize>,
}

impl Factor {
    /// The tensor `key`, or `None` if the file has none.
    pub(super) fn find(source: &Arc<dyn ParamSource>, key: &str) -> Option<Self> {
        let shape = source.info(key)?.shape;
        Some(Self { source: source.clone(), key: key.to_string(), shape })
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// The shape as a matrix: the first dimension, and all others as one.
    pub(super) fn dims(&self) -> (usize, usize) {
        match self.shape.as_slice() {
            [] => (1, 1),
            [rows, rest @ ..] => (*rows, rest.iter().product()),
        }
    }

    /// The elements as f32.
    pub(super) fn values(&self) -> Result<Vec<f32>> {
        let (origin, key) = (self.source.origin(&self.key), self.key.clone());
        let Some(data) = self.source.data(&self.key)? else {
            return Err(Error::Missing { origin, key, expected: self.shape.clone() });
        };
        let Some(values) = data.to_f32().filter(|values| values.len() == self.elements()) else {
            return Err(Error::StoredDType { origin, key, found: format!("{:?}", data.info.dtype) });
        };
        drop(data);
        self.source.release(&self.key);
        Ok(values)
    }

    /// The tensor in f32 in the host's memory, in its stored shape.
    pub(super) fn tensor(&self) -> Result<Tensor> {
        Ok(Tensor::from_vec(self.values()?, self.shape.as_slice(), &Device::Cpu)?)
    }

    /// The tensor as a matrix of [`Self::dims`].
    pub(super) fn matrix(&self) -> Result<Tensor> {
        Ok(Tensor::from_vec(self.values()?, self.dims(), &Device::Cpu)?)
    }

    /// The value of a tensor with a single finite element, which may be an integer. `None` for other tensors.
    pub(super) fn scalar(&self) -> Result<Option<f64>> {
        if self.elements() != 1 {
            return Ok(None);
        }
        let whole = match self.source.data(&self.key)? {
            Some(data) if data.info.dtype == Dtype::I64.into() => {
                data.bytes.first_chunk().map(|bytes| i64::from_le_bytes(*bytes) as f64)
            }
            Some(data) if data.info.dtype == Dtype::I32.into() => {
                data.bytes.first_chunk().map(|bytes| f64::from(i32::from_le_bytes(*bytes)))
            }
            _ => None,
        };
        let value = match whole {
            Some(value) => Some(value),
            None => self.values()?.first().map(|&value| f64::from(value)),
        };
        Ok(value.filter(|value| value.is_finite()))
    }
}
