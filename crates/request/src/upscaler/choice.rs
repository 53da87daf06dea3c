//! Which upscaler, and where its file is.

use std::path::{Path, PathBuf};

use kiln_media::Filter;

use crate::error::{Error, Result};

/// An upscaler: a filter or a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpscalerChoice {
    /// A filter: no network and no file.
    Filter(Filter),
    /// A file, or a file's name in the folder of upscalers.
    File(PathBuf),
}

/// The names of filters.
const FILTERS: [(&str, Filter); 4] = [
    ("lanczos", Filter::Lanczos3),
    ("bicubic", Filter::Bicubic),
    ("bilinear", Filter::Bilinear),
    ("nearest", Filter::Nearest),
];

/// Extensions of upscaler files.
const ENDINGS: [&str; 5] = ["safetensors", "pth", "pt", "ckpt", "bin"];

impl Default for UpscalerChoice {
    /// Lanczos.
    fn default() -> Self {
        Self::Filter(Filter::Lanczos3)
    }
}

impl From<PathBuf> for UpscalerChoice {
    /// A filter by its name in letters of any case, else a file. `./lanczos` is a file.
    fn from(path: PathBuf) -> Self {
        let is_path = |name: &str| path.as_os_str().eq_ignore_ascii_case(name);
        match FILTERS.iter().find(|(name, _)| is_path(name)) {
            Some((_, filter)) => Self::Filter(*filter),
            None => Self::File(path),
        }
    }
}

/// The name of a filter, as settings of images have it.
pub(crate) fn filter_name(filter: Filter) -> &'static str {
    match filter {
        Filter::Nearest => "Nearest",
        Filter::Box => "Box",
        Filter::Bilinear => "Bilinear",
        Filter::Bicubic => "Bicubic",
        Filter::Lanczos3 => "Lanczos",
    }
}

/// The file that a path means: itself; or in `folder` a file of this name, with or without its ending; for
/// `hf:OWNER/NAME/FILE` what the Hub's cache has.
pub(super) fn locate(path: &Path, folder: Option<&Path>) -> Result<PathBuf> {
    if let Some(path) = kiln_models::cached(path)? {
        return Ok(path);
    }
    if path.exists() {
        return Ok(path.to_path_buf());
    }
    let mut tried = Vec::new();
    if let Some(folder) = folder.filter(|_| path.components().count() == 1) {
        let with_ending = |ending: &&str| {
            let mut name = path.as_os_str().to_owned();
            name.push(".");
            name.push(ending);
            PathBuf::from(name)
        };
        for name in std::iter::once(path.to_path_buf()).chain(ENDINGS.iter().map(with_ending)) {
            let candidate = folder.join(name);
            if candidate.is_file() {
                return Ok(candidate);
            }
        }
        tried.push(format!("in the folder {}", folder.display()));
    }
    let filters = FILTERS.map(|(name, _)| name).join(", ");
    let file = "an upscaler's file (.safetensors or .pth)";
    let places = if tried.is_empty() { String::new() } else { format!(", also {}", tried.join(", ")) };
    Err(Error::not_found(path, format!("{file}{places}; without a file there are {filters}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_filters_or_files() {
        let of = |text: &str| UpscalerChoice::from(PathBuf::from(text));
        assert_eq!(of("lanczos"), UpscalerChoice::default());
        assert_eq!(of("Nearest"), UpscalerChoice::Filter(Filter::Nearest));
        for file in ["./lanczos", "lanczos.pth", "4x-UltraSharp"] {
            assert_eq!(of(file), UpscalerChoice::File(file.into()));
        }
    }

    #[test]
    fn files_are_found_by_name() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("4x.v2.pth");
        std::fs::write(&file, "").unwrap();
        for name in ["4x.v2", "4x.v2.pth"] {
            assert_eq!(locate(name.as_ref(), Some(folder.path())).unwrap(), file);
        }
        assert_eq!(locate(&file, None).unwrap(), file);
        for (name, of) in [("4x.v2", None), ("4x", Some(folder.path())), ("./4x.v2", Some(folder.path()))] {
            let message = locate(name.as_ref(), of).unwrap_err().to_string();
            assert!(message.contains("not found; looked for an upscaler's file"), "{message}");
            assert!(message.ends_with("without a file there are lanczos, bicubic, bilinear, nearest"), "{message}");
        }
    }
}
