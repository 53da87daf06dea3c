//! Where a tokenizer's files are: in a folder, or as texts that came from elsewhere.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{Result, read_text};

/// Bytes of a tokenizer's file. CLIP's largest, `tokenizer.json`, has 3.6 MB.
const MAX_BYTES: u64 = 32 << 20;

/// The files of a tokenizer, each of which may be missing.
pub(super) enum Files<'a> {
    Folder(&'a Path),
    Texts {
        /// What messages name as the place.
        origin: &'a Path,
        /// By the files' names.
        texts: &'a BTreeMap<String, String>,
    },
}

impl Files<'_> {
    /// The place of all.
    pub(super) fn folder(&self) -> &Path {
        match self {
            Self::Folder(folder) => folder,
            Self::Texts { origin, .. } => origin,
        }
    }

    /// The place of one file, for messages.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        match self {
            Self::Folder(folder) => folder.join(name).exists(),
            Self::Texts { texts, .. } => texts.contains_key(name),
        }
    }

    /// The text of a file; of one that is missing, what the system reports, or nothing.
    pub(super) fn text(&self, name: &str) -> Result<String> {
        match self {
            Self::Folder(folder) => read_text(&folder.join(name), MAX_BYTES),
            Self::Texts { texts, .. } => Ok(texts.get(name).cloned().unwrap_or_default()),
        }
    }
}
