//! Models by their names on the Hugging Face Hub: `hf:OWNER/NAME` wherever a file or a folder of a model can be named.

use std::path::{Path, PathBuf};

use kiln_hub::{Hub, Listener, Precision, Pulled, Reference, Settings, Wants};

use crate::dtype::DTypeChoice;
use crate::error::Result;
use crate::model::PIPELINES;

/// How files come from the Hub. Everything else is said by the environment variables of Hugging Face's own tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HubOptions {
    /// Nobody is asked: what is in the cache is used.
    pub offline: bool,
    /// The type in which the model is to run. Weights of 16 bits are enough for any but f32, where there are such.
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
        // Files that somebody names may be of any model.
        let pipelines = PIPELINES.iter().map(|(class, _)| *class).filter(|_| files.is_empty()).collect();
        Wants { files: files.to_vec(), precision, pipelines }
    }
}

/// Brings a model, or `files` of a repository, into the cache, as they are on the Hub now.
///
/// # Errors
/// [`Error::Hub`](crate::Error::Hub) with what to do; what came until then stays.
pub fn pull(
    reference: &Reference,
    files: &[String],
    options: &HubOptions,
    listener: &mut Listener<'_>,
) -> Result<Pulled> {
    Ok(options.hub()?.pull(reference, &options.wants(files), listener)?)
}

/// The file or folder that a path means: itself, or for `hf:OWNER/NAME[@REVISION][/FILE]` what the cache has, fetched
/// where it does not.
///
/// # Errors
/// As [`pull`]; none for other paths, which need not exist.
pub fn fetched(path: &Path, options: &HubOptions, listener: &mut Listener<'_>) -> Result<PathBuf> {
    match by_name(path)? {
        None => Ok(path.to_path_buf()),
        Some(reference) => Ok(options.hub()?.find_or_pull(&reference, &options.wants(&[]), listener)?.path),
    }
}

/// The same from the cache alone.
pub fn cached(path: &Path) -> Result<Option<PathBuf>> {
    let options = HubOptions { offline: true, ..HubOptions::default() };
    let find = |reference| Ok(options.hub()?.find(&reference, &options.wants(&[]))?.path);
    by_name(path)?.map(find).transpose()
}

fn by_name(path: &Path) -> Result<Option<Reference>> {
    let text = path.to_str().filter(|_| Reference::is_meant_by(path));
    Ok(text.map(str::parse).transpose()?)
}
