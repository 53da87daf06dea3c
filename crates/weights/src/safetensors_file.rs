//! One `.safetensors` file, mapped into memory.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::mmap::Mapped;
use crate::source::{ParamData, ParamInfo, ParamSource};
use crate::{header, mmap};

/// A `.safetensors` file. Opening it reads and checks only the header; elements are read from the mapping.
pub struct SafetensorsFile {
    path: PathBuf,
    map: Mapped,
    tensors: HashMap<String, (ParamInfo, Range<usize>)>,
    metadata: HashMap<String, String>,
}

impl SafetensorsFile {
    /// Opens a file.
    ///
    /// # Errors
    /// [`Error::Io`] if the file cannot be mapped, [`Error::Format`] if it is not a valid safetensors file: truncated,
    /// with overlapping or unused ranges, or with a name that occurs twice.
    pub fn open(path: &Path) -> Result<Self> {
        let map = mmap::map(path)?;
        let (start, header) =
            header::read(&map).map_err(|problem| Error::Format { path: path.to_path_buf(), problem })?;
        let tensors = header
            .tensors()
            .into_iter()
            .map(|(name, tensor)| {
                let (from, to) = tensor.data_offsets;
                let info = ParamInfo { shape: tensor.shape.clone(), dtype: tensor.dtype.into() };
                (name, (info, start + from..start + to))
            })
            .collect();
        let metadata = header.metadata().clone().unwrap_or_default();
        Ok(Self { path: path.to_path_buf(), map, tensors, metadata })
    }

    /// The file's metadata: the header's `__metadata__`.
    pub fn metadata(&self) -> &HashMap<String, String> {
        &self.metadata
    }
}

impl ParamSource for SafetensorsFile {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.tensors.get(key).map(|(info, _)| info.clone())
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        let Some((info, range)) = self.tensors.get(key) else { return Ok(None) };
        Ok(Some(ParamData { info: info.clone(), bytes: Cow::Borrowed(self.map.bytes(range.clone())?) }))
    }

    fn release(&self, key: &str) {
        if let Some((_, range)) = self.tensors.get(key) {
            self.map.forget(range.clone());
        }
    }

    fn origin(&self, _key: &str) -> String {
        self.path.display().to_string()
    }

    fn keys(&self) -> Vec<String> {
        self.tensors.keys().cloned().collect()
    }
}
