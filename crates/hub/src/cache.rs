//! The cache's folder, in the layout that Hugging Face's tools share:
//!
//! ```text
//! models--OWNER--NAME/blobs/<checksum>               content; `<checksum>.incomplete` while it comes
//!                     refs/<revision>                the commit that it is
//!                     snapshots/<commit>/<file>      a link to the content
//! .locks/models--OWNER--NAME/<checksum>.lock         held while content comes
//! ```

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::digest::Checksum;
use crate::error::{Error, Result};
use crate::files::{open_lock, read_small, replace};
use crate::reference::{Reference, path_problem};

/// Bytes of a file of `refs`: a commit, and perhaps the end of its line.
const LONGEST_REF: u64 = 100;
/// The deepest folder of a repository that is looked into.
const DEEPEST: usize = 8;

/// A repository's part of the cache.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
    name: String,
}

impl Cache {
    /// Nothing is read or made.
    pub(crate) fn new(root: &Path, reference: &Reference) -> Self {
        Self { root: root.to_path_buf(), name: reference.folder() }
    }

    fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// Where the files of a commit are.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    /// Where content is.
    pub(crate) fn blob(&self, checksum: &Checksum) -> PathBuf {
        self.folder().join("blobs").join(checksum.text())
    }

    /// Where content is while it comes. Other tools go on with it, and we with theirs.
    pub(crate) fn incomplete(&self, checksum: &Checksum) -> PathBuf {
        self.folder().join("blobs").join(format!("{checksum}.incomplete"))
    }

    /// The commit that a revision was when it was fetched last.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return self.snapshot(revision).is_dir().then(|| revision.into());
        }
        path_problem(revision).map_or(Some(()), |_| None)?;
        let text = read_small(&self.folder().join("refs").join(revision), LONGEST_REF).ok()?;
        Some(text.trim().to_string()).filter(|text| is_commit(text))
    }

    /// Notes which commit a revision is.
    pub(crate) fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        if is_commit(revision) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder().join("refs").join(revision);
        make_folder_of(&path)?;
        replace(&path, commit).map_err(Error::io(&path)) // whole: somebody may read it now
    }

    /// The names of a commit's files whose content is there, sorted.
    pub(crate) fn files(&self, commit: &str) -> Vec<String> {
        let mut names = Vec::new();
        walk(&self.snapshot(commit), "", DEEPEST, &mut names);
        names.sort();
        names
    }

    /// Links a commit's file to content that is there.
    pub(crate) fn link(&self, commit: &str, file: &str, checksum: &Checksum) -> Result<PathBuf> {
        let place = self.snapshot(commit).join(file);
        let blob = self.blob(checksum);
        if same_file(&place, &blob) {
            return Ok(place);
        }
        make_folder_of(&place)?;
        match std::fs::remove_file(&place) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::io(&place)(error)),
            _ => {}
        }
        // From the file's folder up to the repository's.
        let up = "../".repeat(file.split('/').count() + 1);
        let target = PathBuf::from(format!("{up}blobs/{checksum}"));
        match symlink(&target, &place) {
            // Another process linked it.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            // Systems and disks without links have the content twice, as with other tools.
            Err(_) => {
                std::fs::hard_link(&blob, &place)
                    .or_else(|_| std::fs::copy(&blob, &place).map(|_| ()))
                    .map_err(Error::io(&place))?;
            }
            Ok(()) => {}
        }
        Ok(place)
    }

    /// The lock of content. `wait` is called again and again while another process has it.
    pub(crate) fn lock(&self, checksum: &Checksum, wait: &mut dyn FnMut() -> Result<()>) -> Result<File> {
        let path = self.root.join(".locks").join(&self.name).join(format!("{checksum}.lock"));
        make_folder_of(&path)?;
        let file = open_lock(&path).map_err(Error::io(&path))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => wait()?,
                // A disk without locks: what two processes write at once fails its checksum.
                Err(TryLockError::Error(_)) => return Ok(file),
            }
        }
    }
}

/// Whether a text is a commit's full name.
pub(crate) fn is_commit(text: &str) -> bool {
    matches!(Checksum::of(text), Some(Checksum::GitBlob(digits)) if digits == text)
}

/// Makes the folder that a file is to be in.
pub(crate) fn make_folder_of(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).map_err(Error::io(folder))
}

/// Whether both are there and are one file, over whatever links.
fn same_file(a: &Path, b: &Path) -> bool {
    matches!((a.canonicalize(), b.canonicalize()), (Ok(a), Ok(b)) if a == b)
}

fn walk(folder: &Path, prefix: &str, deepest: usize, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (path, name) = (entry.path(), format!("{prefix}{name}"));
        if path.is_file() {
            names.push(name); // over its link: what leads nowhere is not there
        } else if deepest > 0 && path.is_dir() {
            walk(&path, &format!("{name}/"), deepest - 1, names);
        }
    }
}

#[cfg(unix)]
fn symlink(target: &Path, place: &Path) -> std::io::Result<()> {
    std::os::unix::fs::symlink(target, place)
}

#[cfg(windows)]
fn symlink(target: &Path, place: &Path) -> std::io::Result<()> {
    std::os::windows::fs::symlink_file(target, place)
}

#[cfg(not(any(unix, windows)))]
fn symlink(_: &Path, _: &Path) -> std::io::Result<()> {
    Err(ErrorKind::Unsupported.into())
}

/// The name of the model at `path`, where that lies in a cache: the repository's for a commit's folder, the file's for
/// a link to content. Elsewhere `None`.
pub fn cached_name(path: &Path) -> Option<String> {
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let whole = path.canonicalize().ok()?;
    let above = |levels: usize| whole.ancestors().nth(levels)?.file_name()?.to_str();
    match (above(1)?, above(2)?.strip_prefix("models--")) {
        ("snapshots", Some(repository)) => repository.rsplit("--").next().map(String::from),
        ("blobs", Some(_)) => stem(path),
        _ => None,
    }
}
