//! Temporary files of runs that were killed.
//!
//! A file or a folder is written under a temporary name beside its place. A signal removes it; a kill, or a power failure,
//! cannot. So a command that is about to write beside them removes those that nobody has written to for a day.

use std::path::Path;
use std::time::{Duration, SystemTime};

/// What names of temporary files begin and end with.
pub(crate) const PREFIX: &str = ".kiln-";
pub(crate) const SUFFIX: &str = ".part";

/// After so long without a write nobody writes it any more.
const ABANDONED: Duration = Duration::from_secs(24 * 60 * 60);

/// Removes the temporary files and folders in `folder` that were left behind. What cannot be removed stays.
pub(crate) fn remove_leftovers(folder: &Path) {
    remove_older_than(folder, ABANDONED, SystemTime::now());
}

fn remove_older_than(folder: &Path, age: Duration, now: SystemTime) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_ours = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        let Some(metadata) = entry.metadata().ok().filter(|_| is_ours) else { continue }; // of a link, the link's
        let modified = metadata.modified().ok().and_then(|modified| now.duration_since(modified).ok());
        if modified.is_none_or(|since| since < age) {
            continue;
        }
        let path = entry.path();
        let removed = if metadata.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        match removed {
            Ok(()) => tracing::info!(path = %path.display(), "removed a temporary file of a run that was killed"),
            Err(error) => tracing::debug!(path = %path.display(), %error, "a temporary file stays"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_temporary_files_go_and_everything_else_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for name in [".kiln-abc.part", ".kiln-notes.txt", "kiln-a.part", "model.safetensors"] {
            std::fs::write(path(name), "x").unwrap();
        }
        std::fs::create_dir(path(".kiln-dir.part")).unwrap();
        std::fs::write(path(".kiln-dir.part/x"), "x").unwrap();
        let count = || std::fs::read_dir(folder.path()).unwrap().count();
        remove_leftovers(folder.path());
        assert_eq!(count(), 5, "they are new");
        remove_older_than(folder.path(), ABANDONED, SystemTime::now() + ABANDONED * 2);
        assert_eq!(count(), 3);
        assert!(!path(".kiln-abc.part").exists() && !path(".kiln-dir.part").exists());
    }
}
