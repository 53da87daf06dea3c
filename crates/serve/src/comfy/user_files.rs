//! Files that ComfyUI's page keeps for its user: settings and workflows, in folders as that program has them (`user/default`).

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use ring::digest::{SHA256, digest};
use serde_json::{Map, Value, json};
use tempfile::{NamedTempFile, TempDir};

use crate::error::{Refused, RefusedKind};
use crate::scratch;

/// The most bytes of a file, and the most bytes and files of a user.
const MOST_OF_FILE: usize = 16 << 20;
const MOST_OF_USER: u64 = 256 << 20;
const MOST_FILES: usize = 4096;
/// The longest part of a name in bytes, and the most parts.
const LONGEST_PART: usize = 200;
const MOST_PARTS: usize = 8;
/// The file of the settings.
const SETTINGS: &str = "comfy.settings.json";
/// The folder of the one user of a server without keys.
const DEFAULT: &str = "default";
/// Characters that a file's name cannot have on some system.
const NO_NAME: [char; 9] = ['\\', '/', ':', '*', '?', '"', '<', '>', '|'];

/// The files of all users.
pub(crate) struct UserFiles {
    /// The folder of their folders; `None` until the first file is kept in a temporary one.
    root: Mutex<Option<Root>>,
    /// Held while files change: what a user keeps is counted first.
    changes: Mutex<()>,
}

enum Root {
    Given(PathBuf),
    /// It goes with the server.
    Temporary(TempDir),
}

/// A name below a user's folder: checked parts, joined by `/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UserPath(String);

impl UserPath {
    /// The name that a client has sent. Parts that are a way out of the folder, or that some system takes for something else, are
    /// refused.
    ///
    /// # Errors
    /// [`Refused`] with the name.
    pub(crate) fn parse(name: &str) -> Result<Self, Refused> {
        let parts: Vec<&str> = name.split('/').filter(|part| !part.is_empty()).collect();
        let is_part = |part: &&str| {
            part.len() <= LONGEST_PART
                && !part.starts_with('.')
                && !part.ends_with(['.', ' '])
                && !part.contains(|c: char| c.is_control() || NO_NAME.contains(&c))
        };
        if parts.is_empty() || parts.len() > MOST_PARTS || !parts.iter().all(is_part) {
            let expected = "the name of a file or a folder, without a dot at its begin and any of \\ : * ? \" < > |";
            return Err(Refused::value("file", name, expected));
        }
        Ok(Self(parts.join("/")))
    }
}

impl UserFiles {
    /// Those below `folder`, or in a folder that goes with the server.
    pub(crate) fn new(folder: Option<PathBuf>) -> Self {
        Self { root: Mutex::new(folder.map(Root::Given)), changes: Mutex::default() }
    }

    /// The folder of a client. It may not exist.
    fn folder_of(&self, owner: &str) -> io::Result<PathBuf> {
        let mut root = self.root.lock();
        let root = match &mut *root {
            Some(Root::Given(folder)) => folder.clone(),
            Some(Root::Temporary(folder)) => folder.path().to_path_buf(),
            none => {
                let made = tempfile::Builder::new().prefix("kiln-user-").tempdir_in(scratch::folder())?;
                let path = made.path().to_path_buf();
                *none = Some(Root::Temporary(made));
                path
            }
        };
        let name = match owner {
            "" => DEFAULT.into(),
            // A client's name may be an address or hold any characters.
            owner => format!("client_{}", kiln_files::hex(&digest(&SHA256, owner.as_bytes()).as_ref()[..8])),
        };
        Ok(root.join(name))
    }

    /// The files of a folder, and with `recurse` of those in it: each with its name below the folder. `None` if there is no such folder.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn list(
        &self,
        owner: &str,
        folder: &UserPath,
        recurse: bool,
    ) -> io::Result<Option<Vec<(String, Metadata)>>> {
        let folder = self.folder_of(owner)?.join(&folder.0);
        if !folder.is_dir() {
            return Ok(None);
        }
        let mut files = files_below(&folder, recurse)?;
        files.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(Some(files))
    }

    /// The bytes of a file, if there is one.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn read(&self, owner: &str, file: &UserPath) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.folder_of(owner)?.join(&file.0)) {
            Err(error) if is_missing(&error) => Ok(None),
            other => other.map(Some),
        }
    }

    /// Writes a file. False if there is one of this name, which is not replaced without `overwrite`.
    ///
    /// # Errors
    /// [`Refused`] for more than a user may keep, and for errors of the system.
    pub(crate) fn write(&self, owner: &str, file: &UserPath, bytes: &[u8], overwrite: bool) -> Result<bool, Refused> {
        let _changes = self.changes.lock();
        self.write_locked(owner, file, bytes, overwrite)
    }

    fn write_locked(&self, owner: &str, file: &UserPath, bytes: &[u8], overwrite: bool) -> Result<bool, Refused> {
        let folder = self.folder_of(owner).map_err(failed)?;
        let path = folder.join(&file.0);
        if path.exists() && !overwrite {
            return Ok(false);
        }
        if bytes.len() > MOST_OF_FILE {
            let message = format!("{} has {} bytes, expected at most {MOST_OF_FILE}", file.0, bytes.len());
            return Err(Refused::new(RefusedKind::TooLarge, message));
        }
        let all = if folder.is_dir() { files_below(&folder, true).map_err(failed)? } else { Vec::new() };
        let kept: u64 = all.iter().filter(|(name, _)| *name != file.0).map(|(_, about)| about.len()).sum();
        if kept + bytes.len() as u64 > MOST_OF_USER || all.len() >= MOST_FILES {
            let message = format!("a user keeps at most {MOST_OF_USER} bytes in {MOST_FILES} files: delete some");
            return Err(Refused::new(RefusedKind::TooLarge, message));
        }
        replace(&path, bytes).map_err(failed)?;
        Ok(true)
    }

    /// Deletes a file. False if there is none.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn remove(&self, owner: &str, file: &UserPath) -> io::Result<bool> {
        match fs::remove_file(self.folder_of(owner)?.join(&file.0)) {
            Err(error) if is_missing(&error) => Ok(false),
            other => other.map(|()| true),
        }
    }

    /// Gives a file another name. `None` if there is none; false if there is one of the other name, which is not replaced without
    /// `overwrite`.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn rename(&self, owner: &str, [from, to]: [&UserPath; 2], overwrite: bool) -> io::Result<Option<bool>> {
        let _changes = self.changes.lock();
        let folder = self.folder_of(owner)?;
        let [from, to] = [from, to].map(|name| folder.join(&name.0));
        if !from.is_file() {
            return Ok(None);
        }
        if to.exists() && !overwrite {
            return Ok(Some(false));
        }
        to.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::rename(from, to)?;
        Ok(Some(true))
    }

    /// A file's size and times as clients read them.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn about(&self, owner: &str, file: &UserPath) -> io::Result<Value> {
        Ok(view(&file.0, &fs::metadata(self.folder_of(owner)?.join(&file.0))?))
    }

    /// The settings of the page.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn settings(&self, owner: &str) -> io::Result<Map<String, Value>> {
        let bytes = self.read(owner, &UserPath(SETTINGS.into()))?.unwrap_or_default();
        Ok(serde_json::from_slice(&bytes).unwrap_or_default())
    }

    /// Changes some of them.
    ///
    /// # Errors
    /// See [`Self::write`].
    pub(crate) fn set(&self, owner: &str, changed: Map<String, Value>) -> Result<(), Refused> {
        let _changes = self.changes.lock();
        let mut all = self.settings(owner).map_err(failed)?;
        all.extend(changed);
        let text = serde_json::to_vec_pretty(&all).unwrap_or_default();
        self.write_locked(owner, &UserPath(SETTINGS.into()), &text, true).map(drop)
    }
}

impl UserPath {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

/// A file with its size and times in milliseconds.
pub(crate) fn view(name: &str, about: &Metadata) -> Value {
    let since = |time: io::Result<SystemTime>| {
        let time = time.ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        time.map_or(0, |time| time.as_millis() as u64)
    };
    let modified = since(about.modified());
    let created = about.created().map_or(modified, |time| since(Ok(time)));
    json!({ "path": name, "size": about.len(), "modified": modified, "created": created })
}

/// The files in a folder, and with `recurse` in its folders. Links to folders are not followed.
fn files_below(folder: &Path, recurse: bool) -> io::Result<Vec<(String, Metadata)>> {
    let (mut files, mut folders) = (Vec::new(), vec![(String::new(), folder.to_path_buf())]);
    while let Some((begin, folder)) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = format!("{begin}{}", entry.file_name().to_string_lossy());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                if recurse && begin.matches('/').count() < MOST_PARTS {
                    folders.push((format!("{name}/"), entry.path()));
                }
            } else if let Ok(about) = fs::metadata(entry.path())
                && about.is_file()
                && files.len() < MOST_FILES
            {
                files.push((name, about));
            }
        }
    }
    Ok(files)
}

/// Writes a file at once, so that no one reads a part of it.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    let mut file: NamedTempFile<File> = tempfile::Builder::new().prefix(".kiln-").tempfile_in(folder)?;
    file.write_all(bytes)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::IsADirectory | io::ErrorKind::NotADirectory)
}

/// The system's error, without the path on the server.
pub(crate) fn failed(error: io::Error) -> Refused {
    tracing::warn!("the files of ComfyUI's page: {error}");
    Refused::new(RefusedKind::Internal, format!("the file is not kept: {}", error.kind()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> UserPath {
        UserPath::parse(text).unwrap()
    }

    #[test]
    fn names_stay_in_the_folder() {
        assert_eq!(name("workflows//my flow.json").as_str(), "workflows/my flow.json");
        for wrong in
            ["", "/", "..", "../a", "a/../b", ".a", "a/.b", "c:a", "a\\b", "a\0b", "a.", "a ", "a\nb", &"a/".repeat(9)]
        {
            assert!(UserPath::parse(wrong).is_err(), "{wrong:?}");
        }
        assert!(UserPath::parse(&"a".repeat(201)).is_err());
        assert_eq!(name("/etc/passwd").as_str(), "etc/passwd", "below the folder");
    }

    #[test]
    fn files_are_kept_by_user() {
        let folder = tempfile::tempdir().unwrap();
        let files = UserFiles::new(Some(folder.path().into()));
        let flow = name("workflows/a.json");
        assert_eq!(files.read("", &flow).unwrap(), None);
        assert!(files.write("", &flow, b"{}", false).unwrap());
        assert!(!files.write("", &flow, b"[]", false).unwrap());
        assert_eq!(files.read("", &flow).unwrap().unwrap(), b"{}");
        assert_eq!(fs::read(folder.path().join("default/workflows/a.json")).unwrap(), b"{}");
        assert_eq!(files.read("key 1", &flow).unwrap(), None, "another user's");
        assert!(files.list("key 1", &name("workflows"), true).unwrap().is_none());

        files.write("", &name("workflows/sub/b.json"), b"[1]", true).unwrap();
        let names = |recurse| -> Vec<String> {
            let all = files.list("", &name("workflows"), recurse).unwrap().unwrap();
            all.into_iter().map(|(name, _)| name).collect()
        };
        assert_eq!(
            (names(false), names(true)),
            (vec!["a.json".to_string()], vec!["a.json".into(), "sub/b.json".into()])
        );
        let other = name("workflows/c.json");
        assert_eq!(files.rename("", [&name("no"), &other], true).unwrap(), None);
        assert_eq!(files.rename("", [&flow, &name("workflows/sub/b.json")], false).unwrap(), Some(false));
        assert_eq!(files.rename("", [&flow, &other], false).unwrap(), Some(true));
        assert_eq!(files.about("", &other).unwrap()["size"], 2);
        assert!(files.remove("", &other).unwrap() && !files.remove("", &other).unwrap());
        assert!(!files.remove("", &name("workflows")).unwrap(), "a folder is no file");

        files.set("", Map::from_iter([("a".into(), 1.into()), ("b".into(), 2.into())])).unwrap();
        files.set("", Map::from_iter([("b".into(), Value::Null)])).unwrap();
        assert_eq!(Value::from(files.settings("").unwrap()), json!({ "a": 1, "b": null }));
        assert!(files.settings("key 1").unwrap().is_empty());
    }

    #[test]
    fn a_user_keeps_no_more_than_there_is_room_for() {
        let files = UserFiles::new(None);
        let large = vec![b' '; MOST_OF_FILE + 1];
        assert_eq!(files.write("", &name("a"), &large, true).unwrap_err().kind, RefusedKind::TooLarge);
        for i in 0..MOST_OF_USER / MOST_OF_FILE as u64 {
            assert!(files.write("", &name(&i.to_string()), &large[1..], true).unwrap());
        }
        assert_eq!(files.write("", &name("a"), b"a", true).unwrap_err().kind, RefusedKind::TooLarge);
        assert!(files.write("", &name("0"), b"a", true).unwrap(), "a smaller one in its place");
    }
}
