//! The batch sizes that searches have found, in a file of the user's cache folder.
//!
//! `batch-sizes.json` is a list of entries, the newest first. An unreadable or damaged file counts as an empty list. If two programs
//! write at the same time, one of the two lists remains, and a size is searched again.

use std::path::{Path, PathBuf};

use kiln_files::{read_small, replace_file, sha256};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::size_search::MOST;

/// The maximum number of entries; the oldest are removed.
const ENTRIES: usize = 1000;
/// The maximum file size of such a list.
const MAX_BYTES: u64 = 1 << 20;

/// The result of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Entry {
    /// The SHA-256 of all that decides on the speed ([`kiln_engine::Engine::kind_of_batches`]).
    kind: String,
    /// For readers: the model, the device and the size of the images.
    about: String,
    batch_size: usize,
    images_per_second: f64,
}

/// The findings of earlier runs, and of this one.
#[derive(Debug)]
pub(super) struct KnownSizes {
    file: Option<PathBuf>,
    known: Mutex<Vec<Entry>>,
}

impl KnownSizes {
    /// Those in a cache folder. Without one they are known in this run alone.
    pub(super) fn new(folder: Option<&Path>) -> Self {
        let file = folder.map(|folder| folder.join("batch-sizes.json"));
        let known = file.as_deref().map(read).unwrap_or_default();
        Self { file, known: Mutex::new(known) }
    }

    /// The batch size for images of this kind, if one was found.
    pub(super) fn get(&self, kind: &str) -> Option<usize> {
        let kind = sha256(kind.as_bytes());
        let size = self.known.lock().iter().find(|entry| entry.kind == kind)?.batch_size;
        (1..=MOST).contains(&size).then_some(size)
    }

    /// Notes what was found. A file that cannot be written costs the next run a search.
    pub(super) fn put(&self, kind: &str, about: String, (batch_size, images_per_second): (usize, f64)) {
        let kind = sha256(kind.as_bytes());
        let mut known = self.known.lock();
        if let Some(file) = &self.file {
            *known = read(file); // with what other programs have found
        }
        known.retain(|entry| entry.kind != kind);
        known.insert(0, Entry { kind, about, batch_size, images_per_second });
        known.truncate(ENTRIES);
        let json = serde_json::to_vec_pretty(&*known).unwrap_or_default();
        if let Some(Err(error)) = self.file.as_deref().map(|file| replace_file(file, &json)) {
            tracing::warn!("the batch size that was found is not kept: {error}");
        }
    }
}

fn read(file: &Path) -> Vec<Entry> {
    let found = read_small(file, MAX_BYTES).ok();
    found.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_are_kept_by_kind() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("new");
        let known = KnownSizes::new(Some(&place));
        assert_eq!(known.get("a"), None);
        let other = KnownSizes::new(Some(&place));
        known.put("a", "sd, cpu, 512x512".into(), (4, 2.5));
        other.put("b", "sd, cpu, 64x64".into(), (16, 25.0));
        known.put("a", "sd, cpu, 512x512".into(), (8, 3.5));
        let known = KnownSizes::new(Some(&place));
        assert_eq!((known.get("a"), known.get("b"), known.get("c")), (Some(8), Some(16), None));
        assert_eq!(known.known.lock().len(), 2);
        let nowhere = KnownSizes::new(None);
        nowhere.put("a", String::new(), (3, 1.0));
        assert_eq!(nowhere.get("a"), Some(3));
    }

    #[test]
    fn a_damaged_list_is_empty() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("batch-sizes.json");
        for damaged in ["", "{}", "[{\"kind\": 7}]", "\0"] {
            std::fs::write(&file, damaged).unwrap();
            assert_eq!(KnownSizes::new(Some(folder.path())).get("a"), None);
        }
        let absurd = [0, 1 << 40].map(|batch_size| {
            let (kind, about) = (sha256(b"a"), String::new());
            Entry { kind, about, batch_size, images_per_second: 1.0 }
        });
        for entry in absurd {
            std::fs::write(&file, serde_json::to_vec(&[entry]).unwrap()).unwrap();
            assert_eq!(KnownSizes::new(Some(folder.path())).get("a"), None, "no batch of that size is made");
        }
    }
}
