//! The copy of the model's files in a folder.

use std::fs::File;
use std::path::{Path, PathBuf};

use kiln_files::{Result, folder_of, remove_orphans, replace_file, sha256, write_error};

use crate::file::ModelFile;

/// The digits of the folder's name.
const DIGITS: usize = 16;

/// The folder `<root>/<name>-<hash>/<name>` with copies of all `files`. The last part is the model's name, which images contain; the
/// hash keeps the files of two versions of the program apart.
///
/// A file is written under another name and renamed, so no reader sees a part of one. A lock has one process write at a time. Copies
/// that are complete are not touched, so a folder without write permission is fine as long as it has them all.
///
/// # Errors
/// [`kiln_files::Error::Write`].
pub(crate) fn complete(root: &Path, name: &str, files: &[ModelFile]) -> Result<PathBuf> {
    let place = root.join(format!("{name}-{}", &digest(files)[..DIGITS]));
    let folder = place.join(name);
    let is_missing = |file: &&ModelFile| !file.is_copied(&folder.join(file.name));
    if !files.iter().any(|file| is_missing(&file)) {
        return Ok(folder);
    }
    std::fs::create_dir_all(&place).map_err(write_error(&place))?;
    let _lock = locked(&place.join("lock"))?;
    // Another process may have written them before it gave the lock away.
    for file in files.iter().filter(is_missing) {
        let path = folder.join(file.name);
        remove_orphans(folder_of(&path)); // of a process that was killed
        replace_file(&path, file.bytes)?;
        tracing::info!("{}: written", path.display());
    }
    Ok(folder)
}

/// A file that is locked until it is dropped. Some network file systems have no locks; files are written as a whole there, too.
fn locked(path: &Path) -> Result<File> {
    let file = File::options().create(true).append(true).open(path).map_err(write_error(path))?;
    let _ = file.lock();
    Ok(file)
}

/// The digest of the names and contents; large files count by their CRC-32.
fn digest(files: &[ModelFile]) -> String {
    let mut bytes = Vec::new();
    for file in files {
        for part in [file.name.as_bytes(), &file.bytes.len().to_le_bytes()] {
            bytes.extend(part);
        }
        match file.crc {
            Some(crc) => bytes.extend(crc.to_le_bytes()),
            None => bytes.extend(file.bytes),
        }
    }
    sha256(&bytes)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    const FILES: &[ModelFile] = &[
        ModelFile { name: "a.json", bytes: b"{}", crc: None },
        // The CRC-32 of these nine digits is in its definition.
        ModelFile { name: "part/b.bin", bytes: b"123456789", crc: Some(0xcbf4_3926) },
    ];

    fn changed(path: &Path) -> SystemTime {
        path.metadata().unwrap().modified().unwrap()
    }

    #[test]
    fn missing_and_damaged_files_are_written_and_others_are_not() {
        let root = tempfile::tempdir().unwrap();
        let folder = complete(root.path(), "tiny", FILES).unwrap();
        let [first, second] = [folder.join("a.json"), folder.join("part/b.bin")];
        assert!(folder.ends_with("tiny") && folder.parent().unwrap().parent() == Some(root.path()));
        assert_eq!(
            (std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap()),
            (b"{}".into(), b"123456789".into())
        );
        let before = changed(&first);
        for damage in ["123456780", "123", ""] {
            std::fs::write(&second, damage).unwrap();
            assert_eq!(complete(root.path(), "tiny", FILES).unwrap(), folder);
            assert_eq!(std::fs::read(&second).unwrap(), b"123456789", "after {damage:?}");
        }
        assert_eq!(changed(&first), before);
        std::fs::remove_file(&first).unwrap();
        complete(root.path(), "tiny", FILES).unwrap();
        assert_eq!(std::fs::read(&first).unwrap(), b"{}");
        let names: Vec<_> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), 2, "{names:?}");
    }

    #[test]
    fn other_contents_have_another_folder() {
        let other = [FILES[0], ModelFile { crc: Some(1), ..FILES[1] }];
        assert_ne!(digest(FILES), digest(&other));
        assert_ne!(digest(FILES), digest(&FILES[..1]));
    }

    #[test]
    fn a_file_in_the_place_of_the_folder_is_an_error_with_its_path() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        std::fs::write(&path, "").unwrap();
        let message = complete(&path, "tiny", FILES).unwrap_err().to_string();
        assert!(message.starts_with(&format!("cannot write {}", path.display())), "{message}");
    }

    #[test]
    fn threads_write_at_the_same_time() {
        let root = tempfile::tempdir().unwrap();
        let folders: Vec<PathBuf> = std::thread::scope(|scope| {
            let start = || scope.spawn(|| complete(root.path(), "tiny", FILES).unwrap());
            let threads: Vec<_> = (0..8).map(|_| start()).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(folders.iter().all(|folder| *folder == folders[0]));
        assert!(FILES.iter().all(|file| file.is_copied(&folders[0].join(file.name))));
    }
}
