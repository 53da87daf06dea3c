//! Files in a cache that other users may write to: a name may be a link, a pipe, or a file without end.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Result, Write};
use std::path::Path;

/// Reads a small text file. Anything but a regular file of at most `most` bytes is an error.
pub(crate) fn read_small(path: &Path, most: u64) -> Result<String> {
    let mut options = File::options();
    options.read(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK); // opening a pipe would wait for a writer
    let file = options.open(path)?;
    if !file.metadata()?.is_file() {
        return Err(ErrorKind::InvalidInput.into());
    }
    let mut text = String::new();
    match file.take(most + 1).read_to_string(&mut text)? as u64 > most {
        true => Err(ErrorKind::FileTooLarge.into()),
        false => Ok(text),
    }
}

/// Opens a regular file to read and write, or creates it. A link, a pipe or a file with several hard links is removed first:
/// writing to it would change a file elsewhere.
pub(crate) fn open_own(path: &Path) -> Result<File> {
    match open_existing(File::options().read(true).write(true), path) {
        Ok(file) if is_own(&file)? => return Ok(file),
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) if path.symlink_metadata().is_ok_and(|found| found.is_file()) => return Err(error),
        _ => std::fs::remove_file(path)?,
    }
    File::options().read(true).write(true).create_new(true).open(path)
}

/// Opens or creates a file that is only locked, never written to.
pub(crate) fn open_lock(path: &Path) -> Result<File> {
    // Windows locks no file that is only appended to.
    open_existing(File::options().create(true).append(true).read(cfg!(windows)), path)
}

/// Opens a file without following links and without waiting for the other end of a pipe.
fn open_existing(options: &mut OpenOptions, path: &Path) -> Result<File> {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(options, libc::O_NOFOLLOW | libc::O_NONBLOCK);
    #[cfg(windows)]
    if path.symlink_metadata().is_ok_and(|found| found.is_symlink()) {
        return Err(ErrorKind::InvalidInput.into());
    }
    options.open(path)
}

#[cfg(unix)]
fn is_own(file: &File) -> Result<bool> {
    let found = file.metadata()?;
    Ok(found.is_file() && std::os::unix::fs::MetadataExt::nlink(&found) == 1)
}

#[cfg(not(unix))]
fn is_own(file: &File) -> Result<bool> {
    Ok(file.metadata()?.is_file())
}

/// Replaces the file `path` by `content` atomically, through a temporary file with a random name.
pub(crate) fn replace(path: &Path, content: &str) -> Result<()> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(".kiln-").suffix(".new");
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666)); // minus the umask: users share the cache
    let mut file = builder.tempfile_in(path.parent().unwrap_or(path))?;
    file.write_all(content.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::fs::TryLockError;
    #[cfg(unix)]
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_lock_file_is_locked_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.lock");
        let [first, second] = [(); 2].map(|()| open_lock(&path).unwrap());
        first.try_lock().unwrap();
        assert!(matches!(second.try_lock(), Err(TryLockError::WouldBlock)));
        drop(first);
        second.try_lock().unwrap();
    }

    #[test]
    fn a_partial_file_is_continued_and_one_that_is_open_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        open_own(&path("part")).unwrap().write_all(b"half").unwrap();
        let again = open_own(&path("part")).unwrap();
        assert_eq!(again.metadata().unwrap().len(), 4);
        replace(&path("main"), "old").unwrap();
        let reader = File::open(path("main")).unwrap(); // another program reads it
        replace(&path("main"), "new").unwrap();
        assert_eq!(read_small(&path("main"), 100).unwrap(), "new");
        drop(reader);
        fs::rename(path("part"), path("whole")).unwrap(); // it is open
        assert_eq!(fs::read(path("whole")).unwrap(), b"half");
        drop(again);
    }

    #[cfg(unix)]
    #[test]
    fn no_other_file_is_opened_for_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("victim"), "precious").unwrap();
        symlink(path("victim"), path("link")).unwrap();
        fs::hard_link(path("victim"), path("hard")).unwrap();
        symlink(path("nowhere"), path("dangling")).unwrap();
        for name in ["link", "hard", "dangling", "new"] {
            let mut file = open_own(&path(name)).unwrap();
            file.write_all(b"x").unwrap();
            let found = path(name).symlink_metadata().unwrap();
            assert!(found.is_file() && found.len() == 1, "{name}");
        }
        assert_eq!(fs::read_to_string(path("victim")).unwrap(), "precious");
        assert!(!path("nowhere").exists());
        // An incomplete file is continued.
        assert_eq!(open_own(&path("new")).unwrap().metadata().unwrap().len(), 1);
        symlink(path("victim"), path("lock")).unwrap();
        assert!(open_lock(&path("lock")).is_err() && open_lock(&path("other.lock")).is_ok());
    }

    #[cfg(unix)]
    #[test]
    fn small_files_are_regular_and_small() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        fs::write(&path, "1234").unwrap();
        assert_eq!(read_small(&path, 4).unwrap(), "1234");
        assert_eq!(read_small(&path, 3).unwrap_err().kind(), ErrorKind::FileTooLarge);
        assert!(read_small(Path::new("/dev/zero"), 10).is_err() && read_small(folder.path(), 10).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn a_file_is_replaced_atomically_and_not_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("victim"), "precious").unwrap();
        symlink(path("victim"), path("main")).unwrap();
        replace(&path("main"), "abc").unwrap();
        assert_eq!(fs::read_to_string(path("main")).unwrap(), "abc");
        assert_eq!(fs::read_to_string(path("victim")).unwrap(), "precious");
        let mode = std::os::unix::fs::PermissionsExt::mode(&path("main").metadata().unwrap().permissions());
        assert_eq!(mode & 0o400, 0o400);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
