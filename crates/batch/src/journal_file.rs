//! Opening the file of a journal so that one process writes it and others can read it meanwhile.
//!
//! Unix has advisory locks, which end with the process and keep no one from reading. A lock of Windows keeps other
//! handles from reading, too. So the file is opened there with a sharing mode instead: others may read, rename and
//! delete it, and opening it to write fails while the handle exists.

use std::fs::{File, OpenOptions};
use std::io::Result;
use std::path::Path;

/// Opens or creates a file to read it and to append to it. `None` if another process has it to write.
#[cfg(not(windows))]
pub(crate) fn open_to_write(path: &Path) -> Result<Option<File>> {
    let file = OpenOptions::new().read(true).append(true).create(true).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
        // Some network file systems have no locks.
        Err(std::fs::TryLockError::Error(error)) => tracing::warn!("{} is not locked: {error}", path.display()),
    }
    Ok(Some(file))
}

/// Opens or creates a file to read it and to append to it. `None` if another process has it to write.
///
/// It is not opened to append: such a handle cannot shorten the file. The caller reads it to its end first, and writes there.
#[cfg(windows)]
pub(crate) fn open_to_write(path: &Path) -> Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    std::os::windows::fs::OpenOptionsExt::share_mode(&mut options, windows::SHARED_TO_READ);
    match options.open(path) {
        Err(error) if error.raw_os_error() == Some(windows::ERROR_SHARING_VIOLATION) => Ok(None),
        opened => opened.map(Some),
    }
}

/// Whether a process has a file to write, which `file` was opened to read from `path`. `false` if the file system has no locks.
#[cfg(not(windows))]
pub(crate) fn is_written(file: &File, _path: &Path) -> bool {
    matches!(file.try_lock_shared(), Err(std::fs::TryLockError::WouldBlock))
}

/// Whether a process has a file to write, which `file` was opened to read from `path`.
#[cfg(windows)]
pub(crate) fn is_written(_file: &File, path: &Path) -> bool {
    // The handle ends at once. A run that starts in this moment reports that another one writes the journal.
    let error = OpenOptions::new().write(true).open(path).err();
    error.is_some_and(|error| error.raw_os_error() == Some(windows::ERROR_SHARING_VIOLATION))
}

/// Numbers of the interface of Windows.
#[cfg(windows)]
mod windows {
    /// `FILE_SHARE_READ | FILE_SHARE_DELETE`.
    pub(super) const SHARED_TO_READ: u32 = 1 | 4;
    pub(super) const ERROR_SHARING_VIOLATION: i32 = 32;
}
