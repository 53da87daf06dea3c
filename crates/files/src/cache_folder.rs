//! The folder for files that a program can compute again.

use std::path::{Path, PathBuf};

/// The environment variable with the folder.
const CACHE: &str = "KILN_CACHE";

/// The cache folder of Kiln: the value of `KILN_CACHE`, else `kiln` in the user's cache folder, on Windows `kiln\cache` in the folder
/// for local data of programs. `None` if there is no such folder or the variable is empty.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    if let Some(folder) = set(CACHE) {
        return (!folder.as_os_str().is_empty()).then_some(folder);
    }
    if cfg!(windows) {
        return Some(set("LOCALAPPDATA").filter(|folder| is_home(folder))?.join("kiln").join("cache"));
    }
    let of_user = || {
        let below = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
        Some(std::env::home_dir().filter(|home| is_home(home))?.join(below))
    };
    // The XDG Base Directory Specification says that a relative path is ignored.
    let folder = set("XDG_CACHE_HOME").filter(|folder| folder.is_absolute()).or_else(of_user)?;
    Some(folder.join("kiln"))
}

/// Whether a folder can be a user's folder. A relative path would be created in the current folder, and a missing one
/// as a folder of the system.
fn is_home(folder: &Path) -> bool {
    folder.is_absolute() && folder.is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_and_missing_home_folders_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_home(folder.path()));
        assert!(!is_home(&folder.path().join("missing")) && !is_home(Path::new("rel")) && !is_home(Path::new(".")));
    }
}
