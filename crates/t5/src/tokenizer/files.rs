//! The files of a tokenizer: in a folder, or as texts from another source.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kiln_weights::{read_small, read_small_text};

use crate::error::{Error, Result};

/// The maximum size of a tokenizer's file in bytes. T5's largest, `tokenizer.json`, has 2.4 MB.
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
        let path = self.path(name);
        match self {
            Self::Folder(_) => read_small_text(&path, MAX_BYTES).map_err(|source| Error::Io { path, source }),
            Self::Texts { texts, .. } => Ok(texts.get(name).cloned().unwrap_or_default()),
        }
    }

    /// The contents of a file that is not text. Texts contain none.
    pub(super) fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let path = self.path(name);
        match self {
            Self::Folder(_) => read_small(&path, MAX_BYTES).map_err(|source| Error::Io { path, source }),
            Self::Texts { .. } => Ok(self.text(name)?.into_bytes()),
        }
    }
}
