//! One `.safetensors` file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kiln_weights::{ParamSource, SafetensorsFile};
use serde::Serialize;

use super::{FileKind, Stored, stored};
use crate::error::{Error, Result};

/// What a checkpoint file holds.
#[derive(Debug, Clone, Serialize)]
pub struct FileReport {
    /// The file.
    pub path: PathBuf,
    /// Its size in bytes, the header among them.
    pub bytes: u64,
    /// What it looks like, by its tensors' names.
    pub kind: FileKind,
    /// How many tensors.
    pub tensors: usize,
    /// How many numbers in them.
    pub parameters: usize,
    /// How they are stored.
    pub stored: Vec<Stored>,
    /// The file's own notes.
    pub metadata: BTreeMap<String, String>,
}

pub(crate) fn report(path: &Path) -> Result<FileReport> {
    let file = SafetensorsFile::open(path)?;
    let keys = file.keys();
    let stored = stored(keys.iter().filter_map(|key| file.info(key)));
    Ok(FileReport {
        path: path.to_path_buf(),
        bytes: std::fs::metadata(path).map_err(Error::read(path))?.len(),
        kind: FileKind::of(&keys),
        tensors: keys.len(),
        parameters: stored.iter().map(|stored| stored.parameters).sum(),
        stored,
        metadata: file.metadata().clone().into_iter().collect(),
    })
}
