//! Models on the Hugging Face Hub by name: `hf:OWNER/NAME` is accepted wherever a model's file or folder is.

use std::path::{Path, PathBuf};

use kiln_families::{Component, of_class, pipeline_classes};
use kiln_hub::{Folder, Hub, Listener, Precision, Pulled, Reference, Settings, Wants};

use crate::dtype::DTypeChoice;
use crate::error::Result;

/// Options of downloads. The environment variables of Hugging Face's own tools set everything else.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HubOptions {
    /// Offline: only the cache is used.
    pub offline: bool,
    /// The type in which the model is to run. 16-bit weights, if they exist, are chosen for every type except f32.
    pub dtype: DTypeChoice,
}

impl HubOptions {
    fn hub(&self) -> Result<Hub> {
        Ok(Hub::new(Settings::from_env(self.offline)?)?)
    }

    fn wants(&self, files: &[String]) -> Wants {
        let precision = match self.dtype {
            DTypeChoice::F32 => Precision::Full,
            _ => Precision::Half,
        };
        // Files that a user names may belong to any model.
        let pipelines = pipeline_classes().filter(|_| files.is_empty()).collect();
        Wants { files: files.to_vec(), precision, pipelines, folders: Some(folders) }
    }
}

/// The folders of a pipeline of `class`: those of its family, first the ones that every model has.
fn folders(class: &str) -> Vec<Folder> {
    let components = of_class(class).map(|family| family.components()).unwrap_or_default();
    let (texts, others): (Vec<&Component>, Vec<&Component>) =
        components.iter().partition(|component| component.kind.is_text_encoder());
    let folder = |component: &Component| Folder {
        name: component.folder.into(),
        tokenizer: component.tokenizer.map(Into::into),
        is_needed: !component.kind.is_text_encoder(),
    };
    others.into_iter().chain(texts).map(folder).collect()
}

/// Downloads the current version of a model, or of `files` of a repository, into the cache.
///
/// # Errors
/// [`Error::Hub`](crate::Error::Hub) with the necessary action; partial downloads are kept.
pub fn pull(
    reference: &Reference,
    files: &[String],
    options: &HubOptions,
    listener: &mut Listener<'_>,
) -> Result<Pulled> {
    Ok(options.hub()?.pull(reference, &options.wants(files), listener)?)
}

/// The path itself, or for `hf:OWNER/NAME[@REVISION][/FILE]` the file or folder in the cache, downloaded if necessary.
///
/// # Errors
/// As [`pull`]; none for other paths, which may be missing.
pub fn fetched(path: &Path, options: &HubOptions, listener: &mut Listener<'_>) -> Result<PathBuf> {
    match by_name(path)? {
        None => Ok(path.to_path_buf()),
        Some(reference) => Ok(options.hub()?.find_or_pull(&reference, &options.wants(&[]), listener)?.path),
    }
}

/// The same, from the cache only.
pub fn cached(path: &Path) -> Result<Option<PathBuf>> {
    let options = HubOptions { offline: true, ..HubOptions::default() };
    let find = |reference| Ok(options.hub()?.find(&reference, &options.wants(&[]))?.path);
    by_name(path)?.map(find).transpose()
}

/// `hf:OWNER/NAME` for a path `OWNER/NAME` that could be a name on the Hub.
pub(crate) fn suggested(path: &Path) -> Option<String> {
    let text = path.to_str()?;
    let is_word = |word: &str| {
        !word.is_empty()
            && !word.starts_with('.')
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
    };
    let (owner, name) = text.split_once('/')?;
    let is_file = crate::locate::ENDINGS.iter().any(|ending| name.ends_with(&format!(".{ending}")));
    (is_word(owner) && is_word(name) && !is_file).then(|| format!("hf:{text}"))
}

fn by_name(path: &Path) -> Result<Option<Reference>> {
    let text = path.to_str().filter(|_| Reference::is_meant_by(path));
    Ok(text.map(str::parse).transpose()?)
}
