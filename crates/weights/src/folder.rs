//! The weights of one component of a diffusers folder: one file, or several with an index.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use kiln_files::read_small;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::formats::{Checkpoint, unpacked};
use crate::limits::{MAX_INDEX_BYTES, MAX_SHARDS, MAX_TENSORS};
use crate::safetensors_file::SafetensorsFile;
use crate::source::{ParamData, ParamInfo, ParamSource};

/// The names, before the suffix, under which diffusers and transformers save weights.
const STEMS: [&str; 2] = ["diffusion_pytorch_model", "model"];
/// The names from before safetensors.
const PICKLES: [&str; 2] = ["diffusion_pytorch_model.bin", "pytorch_model.bin"];
/// Variants, with the plain one first.
const VARIANTS: [&str; 3] = ["", ".fp16", ".bf16"];

/// Opens the weights in a component's folder (`unet/`, `text_encoder/`, ...): `diffusion_pytorch_model.safetensors` or
/// `model.safetensors`, also sharded (`*.safetensors.index.json`), also as the variants `fp16` and `bf16`; else
/// `diffusion_pytorch_model.bin` or `pytorch_model.bin`.
///
/// Weights that are stored as several tensors are one tensor each, as in [`Checkpoint::open`].
///
/// # Errors
/// [`Error::NoWeights`] with the names that were tried, or an error about the file that was found.
pub fn open_component(folder: &Path) -> Result<Box<dyn ParamSource>> {
    match find(folder)? {
        Found::File(path) => {
            let file = SafetensorsFile::open(&path)?;
            let metadata = file.metadata().clone().into_iter().collect();
            unpacked(Box::new(file), &metadata, &path)
        }
        Found::Pickle(path) => Ok(Box::new(Checkpoint::open(&path)?)),
        Found::Shards(index) => {
            let shards = Sharded::open(folder, &index)?;
            let metadata = shards.files.iter().flat_map(|file| file.metadata().clone()).collect();
            unpacked(Box::new(shards), &metadata, &index)
        }
    }
}

/// The files that [`open_component`] would read weights from, sorted by name.
///
/// # Errors
/// [`Error::NoWeights`] with the names that were tried, or an error about an index.
pub fn component_files(folder: &Path) -> Result<Vec<PathBuf>> {
    Ok(match find(folder)? {
        Found::File(path) | Found::Pickle(path) => vec![path],
        Found::Shards(index) => {
            let names: BTreeSet<String> = read_index(&index)?.into_values().collect();
            names.iter().map(|name| folder.join(name)).collect()
        }
    })
}

/// The contents of a component's folder.
enum Found {
    File(PathBuf),
    /// An index.
    Shards(PathBuf),
    Pickle(PathBuf),
}

fn find(folder: &Path) -> Result<Found> {
    let mut looked_for = Vec::new();
    for variant in VARIANTS {
        for stem in STEMS {
            let name = format!("{stem}{variant}.safetensors");
            let path = folder.join(&name);
            if path.exists() {
                return Ok(Found::File(path));
            }
            let index_name = format!("{stem}.safetensors.index{variant}.json");
            let index = folder.join(&index_name);
            if index.exists() {
                return Ok(Found::Shards(index));
            }
            looked_for.extend([name, index_name]);
        }
    }
    for name in PICKLES {
        let path = folder.join(name);
        if path.exists() {
            return Ok(Found::Pickle(path));
        }
    }
    looked_for.truncate(4); // the plain names and the first variant's are sufficient
    Err(Error::NoWeights { folder: folder.to_path_buf(), looked_for })
}

/// Reads the map from tensors to the files of the index's folder.
fn read_index(index: &Path) -> Result<HashMap<String, String>> {
    let format_error = |problem: String| Error::Format { path: index.to_path_buf(), problem };
    let text = read_small(index, MAX_INDEX_BYTES).map_err(|source| Error::Io { path: index.to_path_buf(), source })?;
    let Index { weight_map } = serde_json::from_slice(&text)
        .map_err(|error| format_error(format!("is not a valid index of weight files: {error}")))?;
    if let Some(name) = weight_map.values().find(|name| Path::new(name).components().count() != 1) {
        return Err(format_error(format!("names a file outside of its folder: `{name}`")));
    }
    let files = weight_map.values().collect::<BTreeSet<_>>().len();
    if files > MAX_SHARDS || weight_map.len() > MAX_TENSORS {
        return Err(format_error(format!(
            "names {files} files and {} tensors, expected at most {MAX_SHARDS} and {MAX_TENSORS}",
            weight_map.len()
        )));
    }
    Ok(weight_map)
}

/// Several files, and the index that maps tensors to them.
struct Sharded {
    origin: String,
    files: Vec<SafetensorsFile>,
    file_of: HashMap<String, usize>,
}

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

impl Sharded {
    fn open(folder: &Path, index: &Path) -> Result<Self> {
        let weight_map = read_index(index)?;
        let names: BTreeSet<&String> = weight_map.values().collect();
        let files = names.iter().map(|name| SafetensorsFile::open(&folder.join(name))).collect::<Result<Vec<_>>>()?;
        let number: HashMap<&String, usize> = names.iter().enumerate().map(|(i, name)| (*name, i)).collect();
        let file_of = weight_map.iter().map(|(key, name)| (key.clone(), number[name])).collect();
        Ok(Self { origin: index.display().to_string(), files, file_of })
    }

    fn file(&self, key: &str) -> Option<&SafetensorsFile> {
        self.file_of.get(key).map(|&i| &self.files[i])
    }
}

impl ParamSource for Sharded {
    fn info(&self, key: &str) -> Option<ParamInfo> {
        self.file(key)?.info(key)
    }

    fn data(&self, key: &str) -> Result<Option<ParamData<'_>>> {
        self.file(key).map_or(Ok(None), |file| file.data(key))
    }

    fn release(&self, key: &str) {
        if let Some(file) = self.file(key) {
            file.release(key);
        }
    }

    fn origin(&self, key: &str) -> String {
        self.file(key).map_or_else(|| self.origin.clone(), |file| file.origin(key))
    }

    fn keys(&self) -> Vec<String> {
        self.file_of.keys().cloned().collect()
    }
}
