//! The folder of input images while their requests are read, which ends with the server.
//!
//! It is `kiln-serve-XXXXXX` in the system's folder of temporary files, with a file `lock` that is locked while a server lives. A
//! server that starts deletes the folders of its own user whose lock is free: their servers were killed.

use std::fs::{File, Metadata, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use tempfile::TempDir;

const PREFIX: &str = "kiln-serve-";
const LOCK: &str = "lock";
/// How often another server may delete a new folder, which is not locked yet.
const ATTEMPTS: usize = 16;
/// The age from which a folder without a lock was left.
const LEFT: Duration = Duration::from_secs(24 * 3600);

/// The folder of all servers of this process.
static CURRENT: Mutex<Weak<Scratch>> = Mutex::new(Weak::new());

/// A folder that is deleted when this is dropped.
pub(crate) struct Scratch {
    /// Held as long as the folder.
    _lock: File,
    folder: TempDir,
}

impl Scratch {
    /// The folder of this process. The first server makes it, and deletes those that killed servers have left.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn open() -> io::Result<Arc<Self>> {
        let mut current = CURRENT.lock();
        if let Some(open) = current.upgrade() {
            return Ok(open);
        }
        let made = Arc::new(Self::new(&std::env::temp_dir())?);
        *current = Arc::downgrade(&made);
        Ok(made)
    }

    fn new(parent: &Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(parent)?;
            let path = folder.path().join(LOCK);
            let Ok(lock) = File::create(&path) else { continue };
            match lock.try_lock() {
                // Another server that starts looks at it, and deletes it.
                Err(TryLockError::WouldBlock) => {}
                Ok(()) if !path.exists() => {}
                // Some file systems have no locks.
                Ok(()) | Err(TryLockError::Error(_)) => {
                    let made = Self { _lock: lock, folder };
                    made.remove_left(parent);
                    return Ok(made);
                }
            }
        }
        Err(io::Error::other("another program deletes the server's temporary folder"))
    }

    /// Deletes the folders in `parent` of servers that are no more. This is cleanup: errors are only logged.
    fn remove_left(&self, parent: &Path) {
        let (Ok(own), Ok(entries)) = (self.folder.path().metadata(), std::fs::read_dir(parent)) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            let is_named = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
            if !is_named || path == self.folder.path() {
                continue;
            }
            let Ok(found) = path.symlink_metadata() else { continue };
            if found.is_dir() && is_of_one_user(&own, &found) {
                match remove_if_left(&path, &found) {
                    Ok(true) => tracing::info!("{}: removed; a server that was killed left it", path.display()),
                    Ok(false) => {}
                    Err(error) => tracing::info!("{}: left by a killed server; not removed: {error}", path.display()),
                }
            }
        }
    }
}

/// The folder in which requests store their images: that of the server, or the system's if none runs.
pub(crate) fn folder() -> PathBuf {
    let open = CURRENT.lock().upgrade();
    open.map_or_else(std::env::temp_dir, |open| open.folder.path().to_path_buf())
}

/// Others cannot put anything into a folder of the same user.
#[cfg(unix)]
fn is_of_one_user(own: &Metadata, found: &Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    own.uid() == found.uid()
}

#[cfg(not(unix))]
fn is_of_one_user(_: &Metadata, _: &Metadata) -> bool {
    true
}

/// Deletes a folder whose server has ended.
fn remove_if_left(path: &Path, found: &Metadata) -> io::Result<bool> {
    let is_old = || Ok::<_, io::Error>(SystemTime::now().duration_since(found.modified()?).is_ok_and(|age| age > LEFT));
    let lock = match File::open(path.join(LOCK)) {
        Ok(lock) => Some(lock),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None, // it is being made, or has another version's form
        Err(error) => return Err(error),
    };
    let is_left = match lock.as_ref().map(File::try_lock) {
        Some(Ok(())) => true,
        Some(Err(TryLockError::WouldBlock)) => false,
        Some(Err(TryLockError::Error(_))) | None => is_old()?,
    };
    if is_left {
        std::fs::remove_dir_all(path)?; // with the lock held: see `Scratch::new`
    }
    Ok(is_left)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_killed_servers_are_deleted_and_those_of_others_are_not() {
        let parent = tempfile::tempdir().unwrap();
        let living = Scratch::new(parent.path()).unwrap();
        let killed = Scratch::new(parent.path()).unwrap();
        let Scratch { _lock, folder } = killed;
        let left = folder.keep();
        std::fs::write(left.join("init"), "an image").unwrap();
        drop(_lock); // the state after a kill: the folder is there and not locked
        for other in ["kiln-serve-new", "notes"] {
            std::fs::create_dir(parent.path().join(other)).unwrap();
        }
        let next = Scratch::new(parent.path()).unwrap();
        assert!(!left.exists() && living.folder.path().exists() && next.folder.path().exists());
        assert!(parent.path().join("kiln-serve-new").exists(), "it has no lock and is new");
        let found = left.parent().unwrap().join("kiln-serve-new").symlink_metadata().unwrap();
        assert!(is_of_one_user(&found, &found));
        let path = next.folder.path().to_path_buf();
        drop(next);
        assert!(!path.exists());
    }
}
