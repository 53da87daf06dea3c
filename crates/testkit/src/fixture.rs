//! A file of tensors and metadata from a reference script.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use safetensors::SafeTensors;
use serde::de::DeserializeOwned;

use crate::paths::fixtures;

/// A fixture: tensors by name, metadata as JSON by name.
pub struct Fixture {
    name: String,
    tensors: HashMap<String, Tensor>,
    notes: HashMap<String, String>,
}

impl Fixture {
    /// Opens `tests/fixtures/{name}`.
    #[track_caller]
    pub fn open(name: &str) -> Self {
        Self::read(name, &fixtures(name))
    }

    /// Opens a safetensors file at any path.
    #[track_caller]
    pub fn read(name: &str, path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let notes = header.metadata().clone().unwrap_or_default();
        let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        Self { name: name.to_string(), tensors, notes }
    }

    /// The tensor `key`.
    #[track_caller]
    pub fn tensor(&self, key: &str) -> Tensor {
        self.get(key).unwrap_or_else(|| panic!("{}: no tensor `{key}`", self.name))
    }

    /// The tensor `key`, if the fixture contains it.
    pub fn get(&self, key: &str) -> Option<Tensor> {
        self.tensors.get(key).cloned()
    }

    /// The values of tensor `key` as f32, in row-major order.
    #[track_caller]
    pub fn values(&self, key: &str) -> Vec<f32> {
        let flat = self.tensor(key).to_dtype(DType::F32).and_then(|tensor| tensor.flatten_all());
        flat.and_then(|flat| flat.to_vec1()).unwrap_or_else(|error| panic!("{}: `{key}`: {error}", self.name))
    }

    /// The metadata entry `key`, parsed as JSON.
    #[track_caller]
    pub fn note<T: DeserializeOwned>(&self, key: &str) -> T {
        let text = self.notes.get(key).unwrap_or_else(|| panic!("{}: no note `{key}`", self.name));
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{}: note `{key}`: {error}", self.name))
    }

    /// The names of all tensors, sorted.
    pub fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.tensors.keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }
}
