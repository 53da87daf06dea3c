//! Where a program keeps files that it could make again.

use std::path::{Path, PathBuf};

/// The environment variable with the folder.
const CACHE: &str = "KILN_CACHE";

/// Where Kiln keeps what it computes once: the folder that `KILN_CACHE` names, else `kiln` in the user's cache folder.
/// `None` where there is no such folder, or where the variable is empty.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    if let Some(folder) = set(CACHE) {
        return (!folder.as_os_str().is_empty()).then_some(folder);
    }
    let of_user = || {
        let below = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
        Some(std::env::home_dir().filter(|home| is_home(home))?.join(below))
    };
    // The XDG Base Directory Specification says that a relative path is ignored.
    let folder = set("XDG_CACHE_HOME").filter(|folder| folder.is_absolute()).or_else(of_user)?;
    Some(folder.join("kiln"))
}

/// Whether a folder may be a user's: a relative one would be made in the current folder, and one that does not exist
/// would be made as a folder of the system.
fn is_home(folder: &Path) -> bool {
    folder.is_absolute() && folder.is_dir()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn homes_that_are_relative_or_missing_are_not_taken() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_home(folder.path()));
        assert!(!is_home(&folder.path().join("missing")) && !is_home(Path::new("rel")) && !is_home(Path::new(".")));
    }
}
