//! Temporary files and folders, and the deletion of those that a killed process left.
//!
//! A file is written as `.kiln-XXXXXX.part` in the folder of its target, so that the target may be on any file system,
//! and renamed when it is complete. It is locked while it is written. The lock ends with the process: a temporary file
//! without a lock is an orphan, and [`remove_orphans`] deletes it. A folder has no lock: it is an orphan one day after
//! its last change.

use std::fs::{File, Metadata, Permissions, TryLockError};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use tempfile::{NamedTempFile, TempDir};

use crate::error::{Error, Result, write_error};

const PREFIX: &str = ".kiln-";
const SUFFIX: &str = ".part";
/// The number of random letters and digits in the name.
const RANDOM: usize = 6;
/// The age of an orphan without a lock: no file takes a day to write.
const ORPHAN_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// The maximum number of times that another process may delete a new temporary file as an orphan.
const ATTEMPTS: usize = 16;

/// An empty, locked file in the folder of `path`. It is deleted when the value is dropped.
///
/// # Errors
/// [`Error::Write`] with `path` if the folder is not writable.
pub fn temporary_beside(path: &Path) -> Result<NamedTempFile> {
    for _ in 0..ATTEMPTS {
        let file = create(folder_of(path)).map_err(write_error(path))?;
        // Between its creation and its lock another process may have deleted it as an orphan.
        match file.as_file().try_lock() {
            Err(TryLockError::WouldBlock) => continue,
            Ok(()) if !file.path().exists() => continue,
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(file), // some network file systems have no locks
        }
    }
    Err(write_error(path)(std::io::Error::other("another program deletes the temporary files of this folder")))
}

fn create(folder: &Path) -> std::io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM);
    if let Some(permissions) = default_permissions() {
        builder.permissions(permissions);
    }
    builder.tempfile_in(folder)
}

/// An empty folder in the folder of `path`. It is deleted when the value is dropped.
///
/// # Errors
/// [`Error::Write`] with `path` if the folder is not writable.
pub fn temporary_folder_beside(path: &Path) -> Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX).rand_bytes(RANDOM);
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o777));
    builder.tempdir_in(folder_of(path)).map_err(write_error(path))
}

/// The mode that other programs give to new files (the umask is applied to it). Temporary files would be private
/// otherwise.
fn default_permissions() -> Option<Permissions> {
    #[cfg(unix)]
    return Some(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    #[cfg(not(unix))]
    None
}

/// The folder of a file.
pub fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Renames a temporary file to `path`; a file of that name is replaced.
///
/// # Errors
/// [`Error::Write`].
pub fn persist(file: NamedTempFile, path: &Path) -> Result<()> {
    file.persist(path).map(drop).map_err(|error| write_error(path)(error.error))
}

/// Writes a file as a whole: a reader finds the old bytes or the new ones. Its folder is created if it does not exist.
///
/// # Errors
/// [`Error::Write`].
pub fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = folder_of(path);
    std::fs::create_dir_all(folder).map_err(write_error(folder))?;
    let mut file = temporary_beside(path)?;
    file.write_all(bytes).map_err(write_error(path))?;
    persist(file, path)
}

/// Renames a temporary file to `path`, which must not exist.
///
/// # Errors
/// [`Error::Exists`], [`Error::Write`].
pub fn persist_new(file: NamedTempFile, path: &Path) -> Result<()> {
    file.persist_noclobber(path).map(drop).map_err(|error| match error.error.kind() {
        std::io::ErrorKind::AlreadyExists => Error::Exists(path.to_path_buf()),
        _ => write_error(path)(error.error),
    })
}

/// Deletes the temporary files and folders directly in `folder` that no running process is writing. Errors are only
/// logged: this is cleanup, and a run must not fail because of it.
pub fn remove_orphans(folder: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(is_temporary_name);
        let Some(kind) = entry.file_type().ok().filter(|kind| is_ours && (kind.is_file() || kind.is_dir())) else {
            continue;
        };
        let path = entry.path();
        let removed =
            if kind.is_dir() { remove_orphaned_folder(&path, SystemTime::now()) } else { remove_orphan(&path) };
        match removed {
            Ok(true) => tracing::info!("{}: removed; a run that was killed left it", path.display()),
            Ok(false) => {}
            Err(error) => tracing::info!("{}: left by a killed run; not removed: {error}", path.display()),
        }
    }
}

/// Deletes a temporary file unless a process is writing it.
fn remove_orphan(path: &Path) -> std::io::Result<bool> {
    let file = File::open(path)?;
    let is_orphan = match file.try_lock() {
        Ok(()) => true,
        Err(TryLockError::WouldBlock) => false,
        Err(TryLockError::Error(_)) => is_old(&file.metadata()?, SystemTime::now())?,
    };
    if is_orphan {
        std::fs::remove_file(path)?; // with the lock held: see `temporary_beside`
    }
    Ok(is_orphan)
}

/// Deletes a temporary folder in which nothing has changed for [`ORPHAN_AGE`].
fn remove_orphaned_folder(path: &Path, now: SystemTime) -> std::io::Result<bool> {
    let mut entries = std::fs::read_dir(path)?;
    let is_orphan = is_old(&path.metadata()?, now)?
        && entries.try_fold(true, |old, entry| Ok::<_, std::io::Error>(old && is_old(&entry?.metadata()?, now)?))?;
    if is_orphan {
        std::fs::remove_dir_all(path)?;
    }
    Ok(is_orphan)
}

fn is_old(metadata: &Metadata, now: SystemTime) -> std::io::Result<bool> {
    Ok(now.duration_since(metadata.modified()?).is_ok_and(|age| age > ORPHAN_AGE))
}

fn is_temporary_name(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX).and_then(|rest| rest.strip_suffix(SUFFIX));
    random.is_some_and(|random| random.len() == RANDOM && random.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(folder).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn orphans_are_deleted_and_locked_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let written = temporary_beside(&folder.path().join("a.png")).unwrap();
        let orphan = temporary_beside(&folder.path().join("b.png")).unwrap();
        // The state after a killed process: the file exists and is not locked.
        let (file, path) = orphan.into_parts();
        let path = path.keep().unwrap();
        drop(file);
        for name in [".kiln-notes.part", ".kiln-abcdef.partial", "kiln-abcdef.part", ".kiln-abc-ef.part"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        std::fs::create_dir(folder.path().join(".kiln-folder.part")).unwrap();
        assert!(is_temporary_name(path.file_name().unwrap().to_str().unwrap()));
        let before = names(folder.path());
        remove_orphans(folder.path());
        let after = names(folder.path());
        assert!(!path.exists() && written.path().exists(), "{after:?}");
        assert_eq!(after.len() + 1, before.len(), "{after:?}");
        persist_new(written, &folder.path().join("a.png")).unwrap();
        let second = temporary_beside(&folder.path().join("a.png")).unwrap();
        assert!(matches!(persist_new(second, &folder.path().join("a.png")), Err(Error::Exists(_))));
    }

    #[test]
    fn a_folder_is_an_orphan_a_day_after_its_last_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = temporary_folder_beside(&folder.path().join("model")).unwrap().keep();
        std::fs::create_dir(path.join("unet")).unwrap();
        let later = SystemTime::now() + ORPHAN_AGE * 2;
        assert!(!remove_orphaned_folder(&path, SystemTime::now()).unwrap() && path.exists());
        assert!(remove_orphaned_folder(&path, later).unwrap() && !path.exists());
    }
}
