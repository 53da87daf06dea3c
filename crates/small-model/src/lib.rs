//! The small model of `models/emoji` as a part of the program.
//!
//! The program contains the files of the model. Models are opened from folders and their weights are mapped from files, so
//! [`folder`] writes the files to the user's cache folder when they are needed for the first time. Later calls check the copy and
//! write what is missing or damaged. The front ends give [`folder`] to `kiln-models`; no other crate contains the 32 MB.
//!
//! ```no_run
//! let folder = kiln_small_model::folder()?;
//! assert!(folder.ends_with(kiln_small_model::NAME) && folder.join("model_index.json").is_file());
//! # Ok::<(), kiln_files::Error>(())
//! ```
#![forbid(unsafe_code)]

mod copy;
mod file;
mod files;

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use kiln_files::{Result, cache_folder, folder_of, remove_orphans, temporary_folder_beside};
use tempfile::TempDir;

use crate::copy::complete;
use crate::files::FILES;

/// The name of the model and of its folder.
pub const NAME: &str = "emoji";

/// The copy of a process that has no cache folder.
static TEMPORARY: Mutex<Option<TempDir>> = Mutex::new(None);

/// The folder with the files of the model: in the cache folder, or, if that cannot be written, in a temporary folder of this process
/// with a warning. Threads and processes may call it at the same time.
///
/// # Errors
/// [`kiln_files::Error::Write`] if the temporary folder cannot be written either.
pub fn folder() -> Result<PathBuf> {
    let mut temporary = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
    if temporary.is_none() {
        match cache_folder().map(|cache| complete(&cache, NAME, FILES)) {
            Some(Ok(folder)) => return Ok(folder),
            Some(Err(error)) => tracing::warn!(
                "{error}; the small model is in a temporary folder for this run. Set KILN_CACHE to a folder that can be written"
            ),
            None => tracing::info!("there is no cache folder; the small model is in a temporary folder for this run"),
        }
    }
    let place = std::env::temp_dir().join(NAME);
    let root = match temporary.take() {
        Some(root) => root,
        None => {
            remove_orphans(folder_of(&place)); // of processes that were killed
            temporary_folder_beside(&place)?
        }
    };
    let folder = complete(root.path(), NAME, FILES);
    *temporary = Some(root);
    folder
}

/// Deletes the copy in the temporary folder, if this process has one. To be called at the end of the process.
pub fn remove_temporary() {
    drop(TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner).take());
}
