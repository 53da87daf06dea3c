//! Finding the model that comes with Kiln, and models by name.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::hub;

/// The model that comes with Kiln.
const DEFAULT: &str = "emoji";
/// The environment variable with a folder of models.
const MODELS: &str = "KILN_MODELS";

/// The folder of the model `name`: a path, or the name of a folder in `KILN_MODELS`, in `models/` beside the binary or
/// above it, or in `models/` of the sources; `hf:OWNER/NAME` is what the Hub's cache has. Without a name the model that
/// comes with Kiln.
///
/// # Errors
/// [`Error::NotFound`] with all the places that were tried, [`Error::Read`] for a device or a FIFO, [`Error::Hub`] with
/// what the cache lacks.
pub fn locate_model(name: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = name.map(hub::cached).transpose()?.flatten() {
        return Ok(path);
    }
    if let Some((path, found)) = name.and_then(|path| Some((path, path.metadata().ok()?))) {
        if found.is_dir() || found.is_file() {
            return Ok(path.to_path_buf());
        }
        let problem = "is a device or a FIFO, expected a folder or a regular file";
        return Err(Error::read(path)(std::io::Error::new(std::io::ErrorKind::InvalidInput, problem)));
    }
    let name = name.unwrap_or(Path::new(DEFAULT));
    let candidates = folders().into_iter().map(|folder| folder.join(name));
    let mut tried = vec![name.display().to_string()];
    if name.components().count() == 1 {
        for candidate in candidates {
            if candidate.exists() {
                return Ok(candidate);
            }
            tried.push(candidate.display().to_string());
        }
    }
    Err(Error::NotFound { path: name.to_path_buf(), looked_for: format!("a model folder at {}", tried.join(", ")) })
}

/// What files of models end with.
const ENDINGS: [&str; 5] = ["safetensors", "ckpt", "gguf", "pt", "bin"];

/// The model that a picture names `name`, which is a folder's name or a file's without its ending. Pictures come from
/// strangers: what is in the current folder is not meant.
pub(crate) fn locate_named(name: &Path) -> Option<PathBuf> {
    let names = std::iter::once(name.to_path_buf()).chain(ENDINGS.iter().map(|ending| {
        let mut name = name.as_os_str().to_owned();
        name.push(".");
        name.push(ending);
        PathBuf::from(name)
    }));
    let names: Vec<PathBuf> = names.collect();
    let candidates =
        folders().into_iter().flat_map(|folder| names.iter().map(move |name| folder.join(name)).collect::<Vec<_>>());
    candidates.into_iter().find(|candidate| candidate.exists())
}

/// Where models may be, the most particular place first.
fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = std::env::var_os(MODELS).map(PathBuf::from).into_iter().collect();
    if let Ok(binary) = std::env::current_exe() {
        // Installed: bin/kiln beside models/. Built: target/release/kiln below the sources.
        folders.extend(binary.ancestors().skip(1).take(4).map(|folder| folder.join("models")));
    }
    folders.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models"));
    folders
}
