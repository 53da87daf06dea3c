//! The files of a tokenizer: in a folder, or as texts from another source.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Result, read_text};

/// The maximum size of a tokenizer's file in bytes. CLIP's largest, `tokenizer.json`, has 3.6 MB.
const MAX_BYTES: u64 = 32 << 20;

/// The files of a tokenizer, each of which may be missing.
pub(super) enum Files<'a> {
    Folder(&'a Path),
    Texts {
        /// The location for messages.
        origin: &'a Path,
        /// The texts by file name.
        texts: &'a BTreeMap<String, String>,
    },
}

impl Files<'_> {
    /// The location of all files.
    pub(super) fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder,
            Self::Texts { origin, .. } => origin,
        }
    }

    /// The location of one file, for messages.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.join(name).exists(),
            Self::Texts { texts, .. } => texts.contains_key(name),
        }
    }

    /// The text of a file. For a missing one the result is the operating system's error, or an empty text.
    pub(super) fn text(&self, name: &str) -> Result<String> {
        match self {
            Self::Folder(folder) => read_text(&folder.join(name), MAX_BYTES),
            Self::Texts { texts, .. } => Ok(texts.get(name).cloned().unwrap_or_default()),
        }
    }
}
