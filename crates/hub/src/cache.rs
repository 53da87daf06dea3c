//! The cache folder, in the layout of Hugging Face's tools:
//!
//! ```text
//! models--OWNER--NAME/blobs/<checksum>               content; `<checksum>.incomplete` during a download
//!                     refs/<revision>                the commit of the revision
//!                     snapshots/<commit>/<file>      a symbolic link to the content
//! .locks/models--OWNER--NAME/<checksum>.lock         held during a download
//! ```

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::digest::Checksum;
use crate::error::{Error, Result};
use crate::files::{open_lock, read_small, replace};
use crate::reference::{MAIN, Reference, path_problem};

/// The most bytes of a file in `refs`: a commit, and perhaps a line end.
const MAX_REF: u64 = 100;
/// How deep the folders of a repository are searched.
const MAX_DEPTH: usize = 8;

/// The cache of one repository.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
    name: String,
}

impl Cache {
    /// Reads and creates nothing.
    pub(crate) fn new(root: &Path, reference: &Reference) -> Self {
        Self { root: root.to_path_buf(), name: reference.folder() }
    }

    fn folder(&self) -> PathBuf {
        self.root.join(&self.name)
    }

    /// The folder with the files of a commit.
    pub(crate) fn snapshot(&self, commit: &str) -> PathBuf {
        self.folder().join("snapshots").join(commit)
    }

    /// The file with the content of this checksum.
    pub(crate) fn blob(&self, checksum: &Checksum) -> PathBuf {
        self.folder().join("blobs").join(checksum.text())
    }

    /// The file that is written during a download. Other tools resume it, and Kiln resumes theirs.
    pub(crate) fn incomplete(&self, checksum: &Checksum) -> PathBuf {
        self.folder().join("blobs").join(format!("{checksum}.incomplete"))
    }

    /// The commit of a revision at its last download.
    pub(crate) fn commit(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return self.snapshot(revision).is_dir().then(|| revision.into());
        }
        path_problem(revision).map_or(Some(()), |_| None)?;
        let text = read_small(&self.folder().join("refs").join(revision), MAX_REF).ok()?;
        Some(text.trim().to_string()).filter(|text| is_commit(text))
    }

    /// Writes which commit a revision is.
    pub(crate) fn set_commit(&self, revision: &str, commit: &str) -> Result<()> {
        if is_commit(revision) || self.commit(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.folder().join("refs").join(revision);
        make_parent_folder(&path)?;
        replace(&path, commit).map_err(Error::io(&path)) // atomic: another process may read it now
    }

    /// The names of a commit's files whose content is in the cache, sorted.
    pub(crate) fn files(&self, commit: &str) -> Vec<String> {
        let mut names = Vec::new();
        walk(&self.snapshot(commit), "", MAX_DEPTH, &mut names);
        names.sort();
        names
    }

    /// Links a commit's file to content in the cache.
    pub(crate) fn link(&self, commit: &str, file: &str, checksum: &Checksum) -> Result<PathBuf> {
        let place = self.snapshot(commit).join(file);
        let blob = self.blob(checksum);
        if same_file(&place, &blob) {
            return Ok(place);
        }
        make_parent_folder(&place)?;
        match std::fs::remove_file(&place) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(Error::io(&place)(error)),
            _ => {}
        }
        let target = from_snapshot_to_blob(file, checksum);
        match symlink(&target, &place) {
            // Another process made the link.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            // Without symbolic links the content is there twice, as with other tools.
            Err(_) => {
                std::fs::hard_link(&blob, &place)
                    .or_else(|_| std::fs::copy(&blob, &place).map(|_| ()))
                    .map_err(Error::io(&place))?;
            }
            Ok(()) => {}
        }
        Ok(place)
    }

    /// Locks the content of this checksum. `wait` is called repeatedly while another process has the lock.
    pub(crate) fn lock(&self, checksum: &Checksum, wait: &mut dyn FnMut() -> Result<()>) -> Result<File> {
        let path = self.root.join(".locks").join(&self.name).join(format!("{checksum}.lock"));
        make_parent_folder(&path)?;
        let file = open_lock(&path).map_err(Error::io(&path))?;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(file),
                Err(TryLockError::WouldBlock) => wait()?,
                // A file system without locks: if two processes write the same file, its checksum will be wrong.
                Err(TryLockError::Error(_)) => return Ok(file),
            }
        }
    }
}

/// Whether a text is the full hash of a commit.
pub(crate) fn is_commit(text: &str) -> bool {
    matches!(Checksum::parse(text), Some(Checksum::GitBlob(digits)) if digits == text)
}

/// The way from the folder of a commit's file up to the repository's and down to content. Its separators are the system's:
/// Windows cannot follow a link with slashes.
fn from_snapshot_to_blob(file: &str, checksum: &Checksum) -> PathBuf {
    let mut target: PathBuf = std::iter::repeat_n("..", file.split('/').count() + 1).collect();
    target.extend(["blobs", checksum.text()]);
    target
}

/// Creates the folder of a file.
pub(crate) fn make_parent_folder(path: &Path) -> Result<()> {
    let folder = path.parent().unwrap_or(path);
    std::fs::create_dir_all(folder).map_err(Error::io(folder))
}

/// Whether both paths exist and lead to the same file.
fn same_file(a: &Path, b: &Path) -> bool {
    same_file::is_same_file(a, b).unwrap_or(false) // a hard link too: systems without symbolic links have these
}

fn walk(folder: &Path, prefix: &str, max_depth: usize, names: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let (path, name) = (entry.path(), format!("{prefix}{name}"));
        if path.is_file() {
            names.push(name); // follows the link: a broken link counts as missing
        } else if max_depth > 0 && path.is_dir() {
            walk(&path, &format!("{name}/"), max_depth - 1, names);
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

/// A repository in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedRepository {
    /// `OWNER/NAME`, and `@REVISION` unless that is `main`.
    pub name: String,
    /// The folder of its commit.
    pub snapshot: PathBuf,
}

/// The repositories of models in the cache folder `root`, one for each revision, sorted.
pub fn cached_repositories(root: &Path) -> Vec<CachedRepository> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).into_iter().flatten().flatten() {
        let folder = entry.file_name().into_string().ok();
        let Some((owner, name)) = folder.as_deref().and_then(|name| name.strip_prefix("models--")?.split_once("--"))
        else {
            continue;
        };
        for revision in std::fs::read_dir(entry.path().join("refs")).into_iter().flatten().flatten() {
            let Ok(revision) = revision.file_name().into_string() else { continue };
            let name = match revision.as_str() {
                MAIN => format!("{owner}/{name}"),
                revision => format!("{owner}/{name}@{revision}"),
            };
            let Ok(reference) = name.parse::<Reference>() else { continue };
            let cache = Cache::new(root, &reference);
            let snapshot = cache.commit(&revision).map(|commit| cache.snapshot(&commit));
            found.extend(snapshot.filter(|path| path.is_dir()).map(|snapshot| CachedRepository { name, snapshot }));
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// The name of the model at `path` if it is in a cache: the repository's name for the folder of a commit, the file's name for
/// a link to content. `None` for other paths.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_have_the_separators_of_the_system() {
        let checksum = Checksum::parse(&"a".repeat(40)).unwrap();
        let text =
            |file| from_snapshot_to_blob(file, &checksum).to_str().unwrap().replace(std::path::MAIN_SEPARATOR, "|");
        assert_eq!(text("a.json"), format!("..|..|blobs|{}", "a".repeat(40)));
        assert_eq!(text("unet/fp16/a.bin"), format!("..|..|..|..|blobs|{}", "a".repeat(40)));
    }

    #[test]
    fn links_of_both_kinds_are_the_same_file_and_copies_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("blob"), "content").unwrap();
        std::fs::hard_link(path("blob"), path("hard")).unwrap();
        std::fs::copy(path("blob"), path("copy")).unwrap();
        assert!(same_file(&path("hard"), &path("blob")) && !same_file(&path("copy"), &path("blob")));
        assert!(!same_file(&path("none"), &path("blob")));
        // Windows refuses symbolic links to users without the right to make them.
        if symlink(Path::new("blob"), &path("soft")).is_ok() {
            assert!(same_file(&path("soft"), &path("blob")));
        }
    }
}
