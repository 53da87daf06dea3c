//! The hashes by which image metadata names model files.
//!
//! The hash of a model is the SHA-256 of its file, of which AUTOMATIC1111 writes 10 digits. The hash of a model folder
//! is that of its concatenated U-Net weights, because its other files are often replaced or shared. Digests are
//! computed on a separate thread while weights load, once for each file: [`cache`] stores them.

mod cache;
mod digest;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cache::{Cache, Entry};
pub use digest::{Scope, old_hash};

/// Files to hash.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Hashed {
    /// Their owner: the file itself, or a model folder.
    pub of: PathBuf,
    /// The files, which are hashed as one sequence.
    pub files: Vec<PathBuf>,
    /// The part of the files to hash.
    pub scope: Scope,
}

impl Hashed {
    /// One file.
    pub fn file(path: &Path, scope: Scope) -> Self {
        Self { of: path.to_path_buf(), files: vec![path.to_path_buf()], scope }
    }

    /// A component of a model: a checkpoint file, or the weights of a folder. `None` if there are none.
    pub fn component(path: &Path) -> Option<Self> {
        if path.is_file() {
            return Some(Self::file(path, Scope::Whole));
        }
        let files = kiln_weights::component_files(path).ok()?;
        Some(Self { of: path.to_path_buf(), files, scope: Scope::Whole })
    }

    /// The identity of a model: its file, or the weights of a folder's U-Net.
    pub fn model(path: &Path) -> Option<Self> {
        if path.is_file() {
            return Self::component(path);
        }
        Some(Self { of: path.to_path_buf(), ..Self::component(&path.join("unet"))? })
    }

    /// The digest in 64 hexadecimal digits, from the cache in `folder` where it is there, else computed now. `None` if files
    /// cannot be read, which is logged.
    pub fn digest(&self, folder: Option<&Path>) -> Option<String> {
        match folder {
            Some(folder) => compute(self, &Cache::in_folder(folder)),
            None => digest::sha256(&self.files, self.scope)
                .inspect_err(|error| tracing::warn!("cannot hash {}: {error}", self.of.display()))
                .ok(),
        }
    }

    /// The digest in 64 hexadecimal digits if the cache in `folder` has it. No file is read but the cache.
    pub fn known(&self, folder: &Path) -> Option<String> {
        let entry = Entry::new(&self.of, &self.files, self.scope)?;
        Cache::in_folder(folder).get(&entry)
    }

    /// A LoRA's file, as AUTOMATIC1111 hashes it.
    pub fn lora(path: &Path) -> Self {
        let is_safetensors = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("safetensors"));
        Self::file(path, if is_safetensors { Scope::PastHeader } else { Scope::Whole })
    }
}

/// Digests that are computed in the background. Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Hashes {
    /// Without a folder nothing is computed.
    folder: Option<PathBuf>,
    digests: Arc<Mutex<HashMap<Hashed, Digest>>>,
}

type Digest = Arc<OnceLock<Option<String>>>;

impl Hashes {
    /// Uses the cache in `folder`, which is created when it is needed. Without a folder nothing is computed.
    pub fn new(folder: Option<&Path>) -> Self {
        Self { folder: folder.map(Path::to_path_buf), digests: Arc::default() }
    }

    /// Starts to compute the digests of `all`, in this order.
    pub fn start(&self, all: Vec<Hashed>) {
        if self.folder.is_none() || all.is_empty() {
            return;
        }
        let this = self.clone();
        let run = move || all.iter().for_each(|hashed| drop(this.get(hashed)));
        // Without a thread, the first reader computes the digest.
        let _ = std::thread::Builder::new().name("kiln-hash".into()).spawn(run);
    }

    /// The digest in 64 hexadecimal digits; waits for it. `None` if files cannot be read, which is logged, or if
    /// nothing is computed.
    pub fn get(&self, hashed: &Hashed) -> Option<String> {
        let cache = Cache::in_folder(self.folder.as_deref()?);
        let digest = {
            let mut digests = self.digests.lock().unwrap_or_else(PoisonError::into_inner);
            digests.entry(hashed.clone()).or_default().clone()
        };
        digest.get_or_init(|| compute(hashed, &cache)).clone()
    }

    /// The file or model folder that was hashed on this machine and whose digest has this prefix.
    pub fn find(&self, begin: &str, scope: Scope) -> Option<PathBuf> {
        Cache::in_folder(self.folder.as_deref()?).find(begin, scope)
    }
}

fn compute(hashed: &Hashed, cache: &Cache) -> Option<String> {
    let Hashed { of, files, scope } = hashed;
    let entry = Entry::new(of, files, *scope);
    if let Some(known) = entry.as_ref().and_then(|entry| cache.get(entry)) {
        return Some(known);
    }
    let start = std::time::Instant::now();
    let sha256 = match digest::sha256(files, *scope) {
        Ok(sha256) => sha256,
        Err(error) => {
            tracing::warn!("cannot hash {}: {error}", of.display());
            return None;
        }
    };
    tracing::info!(of = %of.display(), %sha256, seconds = start.elapsed().as_secs_f64(), "hashed");
    // A file that changed while it was read is hashed again next time.
    if let Some(entry) = entry.filter(|entry| Entry::new(of, files, *scope).as_ref() == Some(entry)) {
        let put = cache.put(entry.with(sha256.clone()));
        put.unwrap_or_else(|error| tracing::info!("cannot cache the hash: {error}"));
    }
    Some(sha256)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_computed_once_and_found_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a.safetensors");
        std::fs::write(&file, "abc").unwrap();
        let cache = folder.path().join("cache");
        let hashes = Hashes::new(Some(&cache));
        let hashed = Hashed::file(&file, Scope::Whole);
        assert_eq!(hashed.known(&cache), None);
        hashes.start(vec![hashed.clone(), Hashed::lora(&file)]);
        let digest = hashes.get(&hashed).unwrap();
        assert!(digest.starts_with("ba7816bf8f"), "{digest}");
        assert_eq!(hashed.known(&cache), Some(digest.clone()));
        assert_eq!(Hashes::new(Some(&cache)).find("ba7816bf8f", Scope::Whole).unwrap(), file.canonicalize().unwrap());
        assert_eq!(hashes.get(&Hashed::file(&folder.path().join("none"), Scope::Whole)), None);
        assert_eq!(Hashes::default().get(&hashed), None, "without a folder nothing is computed");
        assert_eq!([Some(&*cache), None].map(|folder| hashed.digest(folder)), [Some(digest.clone()), Some(digest)]);
    }

    /// A cached digest is used without reading the file, even if it is wrong.
    #[test]
    fn cached_digests_are_not_computed() {
        let folder = tempfile::tempdir().unwrap();
        let (file, list) = (folder.path().join("a.ckpt"), folder.path().join("hashes.json"));
        std::fs::write(&file, "abc").unwrap();
        let hashed = Hashed::file(&file, Scope::Whole);
        Hashes::new(Some(folder.path())).get(&hashed).unwrap();
        let text = std::fs::read_to_string(&list).unwrap().replace("ba7816bf8f", "0000000000");
        std::fs::write(&list, text).unwrap();
        assert!(Hashes::new(Some(folder.path())).get(&hashed).unwrap().starts_with("0000000000"));
    }
}
