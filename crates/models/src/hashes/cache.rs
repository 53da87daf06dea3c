//! Cached digests, in a file of the user's cache folder.
//!
//! `hashes.json` is a list of entries, the newest first. An entry is valid while its files have the same size and
//! modification time. An unreadable or damaged file counts as an empty list. If two programs write at the same time,
//! one of the two lists remains, and a digest is computed again.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use kiln_files::replace_file;
use kiln_weights::read_small;
use serde::{Deserialize, Serialize};

use super::digest::Scope;
use crate::error::Result;

/// The maximum number of entries; the oldest are removed.
const ENTRIES: usize = 2000;
/// The maximum file size of such a list.
const MAX_BYTES: u64 = 16 << 20;

/// The state and digest of some files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Entry {
    /// The owner of the files: the file itself, or a model folder.
    of: PathBuf,
    files: Vec<Fingerprint>,
    scope: Scope,
    sha256: String,
}

/// The state of a file when it was read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Fingerprint {
    path: PathBuf,
    bytes: u64,
    /// Nanoseconds since 1970.
    modified: u64,
}

impl Fingerprint {
    fn of(path: &Path) -> Option<Self> {
        let path = path.canonicalize().ok()?;
        let metadata = path.metadata().ok()?;
        let modified = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?.as_nanos() as u64; // until the year 2554
        Some(Self { path, bytes: metadata.len(), modified })
    }
}

impl Entry {
    /// The state of `files` now; `None` if one is not accessible.
    pub(super) fn new(of: &Path, files: &[PathBuf], scope: Scope) -> Option<Self> {
        let files = files.iter().map(|file| Fingerprint::of(file)).collect::<Option<Vec<_>>>()?;
        Some(Self { of: of.canonicalize().ok()?, files, scope, sha256: String::new() })
    }

    /// With the digest.
    pub(super) fn with(self, sha256: String) -> Self {
        Self { sha256, ..self }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.scope == other.scope && self.files == other.files
    }

    /// Whether the files are unchanged.
    fn holds(&self) -> bool {
        self.files.iter().all(|file| Fingerprint::of(&file.path).as_ref() == Some(file))
    }
}

/// The list in a folder.
#[derive(Debug)]
pub(super) struct Cache {
    path: PathBuf,
}

impl Cache {
    pub(super) fn in_folder(folder: &Path) -> Self {
        Self { path: folder.join("hashes.json") }
    }

    /// The digest of the files that `entry` describes, if it is cached.
    pub(super) fn get(&self, entry: &Entry) -> Option<String> {
        self.read().into_iter().find(|known| known.is_same(entry)).map(|known| known.sha256)
    }

    /// Adds an entry and removes an older one of the same files.
    ///
    /// # Errors
    /// If the folder is not writable.
    pub(super) fn put(&self, entry: Entry) -> Result<()> {
        let paths = |entry: &Entry| entry.files.iter().map(|file| file.path.clone()).collect::<Vec<_>>();
        let mut entries = self.read();
        entries.retain(|known| known.scope != entry.scope || paths(known) != paths(&entry));
        entries.insert(0, entry);
        entries.truncate(ENTRIES);
        let json = serde_json::to_vec_pretty(&entries).unwrap_or_default();
        Ok(replace_file(&self.path, &json)?)
    }

    /// The owner of a digest with this prefix, if its files are unchanged.
    pub(super) fn find(&self, begin: &str, scope: Scope) -> Option<PathBuf> {
        let begin = begin.to_ascii_lowercase();
        let is_it = |entry: &Entry| entry.scope == scope && entry.sha256.starts_with(&begin);
        self.read().into_iter().find(|entry| is_it(entry) && entry.holds()).map(|entry| entry.of)
    }

    fn read(&self) -> Vec<Entry> {
        read_small(&self.path, MAX_BYTES).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_are_not_cached() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, file) = (Cache::in_folder(&folder.path().join("new/folder")), folder.path().join("a.ckpt"));
        std::fs::write(&file, "abc").unwrap();
        let entry = || Entry::new(&file, std::slice::from_ref(&file), Scope::Whole).unwrap();
        assert_eq!(cache.get(&entry()), None);
        cache.put(Entry { sha256: "00ff".repeat(16), ..entry() }).unwrap();
        assert_eq!(cache.get(&entry()).unwrap(), "00ff".repeat(16));
        assert_eq!(cache.find("00FF00FF", Scope::Whole).unwrap(), file.canonicalize().unwrap());
        assert_eq!(cache.find("00ff00ff", Scope::PastHeader), None);
        std::fs::write(&file, "abcd").unwrap();
        assert_eq!(cache.get(&entry()), None);
        assert_eq!(cache.find("00ff00ff", Scope::Whole), None);
        cache.put(Entry { sha256: "11".repeat(32), ..entry() }).unwrap();
        assert_eq!(cache.read().len(), 1, "the older one is gone");
    }

    #[test]
    fn a_damaged_list_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::in_folder(folder.path());
        for damaged in ["", "{}", "[{\"of\": 7}]", "\0"] {
            std::fs::write(&cache.path, damaged).unwrap();
            assert_eq!(cache.find("0", Scope::Whole), None);
        }
    }
}
