//! The folder for files that a program can compute again.

use std::path::{Path, PathBuf};

/// The environment variable with the folder.
const CACHE: &str = "KILN_CACHE";

/// The cache folder of Kiln: the value of `KILN_CACHE`, else `kiln` in the user's cache folder, on Windows `kiln\cache` in the folder
/// for local data of programs. `None` if there is no such folder or the variable is empty.
pub fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).map(PathBuf::from);
    of(System::CURRENT, &set, std::env::home_dir())
}

/// A kind of system, by where its programs keep such files.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(test), allow(dead_code, reason = "a program has one of them"))]
enum System {
    Unix,
    MacOs,
    Windows,
}

impl System {
    const CURRENT: Self = match () {
        () if cfg!(windows) => Self::Windows,
        () if cfg!(target_os = "macos") => Self::MacOs,
        () => Self::Unix,
    };
}

fn of(system: System, set: &dyn Fn(&str) -> Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    if let Some(folder) = set(CACHE) {
        return (!folder.as_os_str().is_empty()).then_some(folder);
    }
    // The XDG Base Directory Specification says that a relative path is ignored.
    let absolute = |name: &str| set(name).filter(|folder| folder.is_absolute());
    let below_home = |folder: &str| Some(home.filter(|home| is_home(home))?.join(folder));
    if let Some(folder) = absolute("XDG_CACHE_HOME") {
        return Some(folder.join("kiln"));
    }
    let of_user = match system {
        System::Unix => below_home(".cache")?,
        System::MacOs => below_home("Library")?.join("Caches"),
        // The folder for files that stay on this machine has other files of programs too.
        System::Windows => {
            return Some(absolute("LOCALAPPDATA").filter(|home| is_home(home))?.join("kiln").join("cache"));
        }
    };
    Some(of_user.join("kiln"))
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
    fn every_system_has_its_folder() {
        let user = tempfile::tempdir().unwrap();
        let user = user.path();
        let find = |system, variables: &[(&str, PathBuf)]| {
            let set = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
            of(system, &set, Some(user.into()))
        };
        let local = ("LOCALAPPDATA", user.to_path_buf());
        assert_eq!(find(System::Unix, &[]), Some(user.join(".cache").join("kiln")));
        assert_eq!(find(System::MacOs, &[]), Some(user.join("Library").join("Caches").join("kiln")));
        assert_eq!(find(System::Windows, std::slice::from_ref(&local)), Some(user.join("kiln").join("cache")));
        assert_eq!(find(System::Windows, &[]), None);
        assert_eq!(find(System::Windows, &[("LOCALAPPDATA", "rel".into())]), None);
        for system in [System::Unix, System::MacOs, System::Windows] {
            let xdg = ("XDG_CACHE_HOME", user.join("x"));
            assert_eq!(find(system, &[local.clone(), xdg.clone()]), Some(user.join("x").join("kiln")), "{system:?}");
            assert_eq!(find(system, &[xdg.clone(), (CACHE, "own".into())]), Some("own".into()), "{system:?}");
            assert_eq!(find(system, &[xdg, (CACHE, "".into())]), None, "{system:?}");
        }
    }

    #[test]
    fn relative_and_missing_home_folders_are_ignored() {
        let folder = tempfile::tempdir().unwrap();
        assert!(is_home(folder.path()));
        assert!(!is_home(&folder.path().join("missing")) && !is_home(Path::new("rel")) && !is_home(Path::new(".")));
    }
}
