//! A file that a run will write: what is refused before the run, and how it is written.
//!
//! - Its folder has to be there and to take files. A folder, a block device or a socket of its name is refused.
//! - A regular file of its name, or a link of any kind, is replaced where that is allowed, else refused. It is written
//!   under a temporary name in the same folder and renamed, so that it appears whole or not at all.
//! - A character device or a FIFO is written into: nothing replaces `/dev/null`, and `mkfifo` and process substitution
//!   do what they are for. `/dev/stdout` and its other names are the standard output, whatever that is.

use std::fs::{Metadata, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::temporary::{folder_of, persist, persist_new, remove_orphans, temporary_beside};
use crate::error::{Error, Result};

/// What an output may be, and which option names it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileRules {
    /// The option that names the file, for messages.
    pub(crate) field: &'static str,
    /// What is written, for messages: "the trace".
    pub(crate) what: &'static str,
    /// The endings that a regular file may have, in lower case.
    pub(crate) extensions: &'static [&'static str],
    /// Whether a file that is there is replaced.
    pub(crate) overwrite: bool,
}

/// A file that will be written.
#[derive(Debug, Clone)]
pub struct PlannedFile {
    path: PathBuf,
    rules: FileRules,
    target: Target,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// Made under a temporary name and renamed.
    File,
    /// A character device or a FIFO, opened and written into.
    #[cfg_attr(not(unix), allow(dead_code, reason = "only found on Unix"))]
    Device,
    StandardOutput,
    StandardError,
}

impl PlannedFile {
    /// Plans a file, with all checks.
    ///
    /// # Errors
    /// Those of [`Self::named`] and [`Self::check_folder`].
    pub(crate) fn plan(path: &Path, rules: FileRules) -> Result<Self> {
        let this = Self::named(path, rules)?;
        this.check_folder()?;
        Ok(this)
    }

    /// Plans a file whose folder is checked later, or was before.
    ///
    /// # Errors
    /// [`Error::Value`] where `path` is a folder or something else that cannot be written, or has another ending,
    /// [`Error::Exists`] where a file would be replaced and may not be, [`Error::Write`] where the system does not say.
    pub(crate) fn named(path: &Path, rules: FileRules) -> Result<Self> {
        let value =
            |expected: String| Error::Value { name: rules.field, found: format!("'{}'", path.display()), expected };
        let target = target(path).map_err(Error::write(path))?;
        let target = target.map_err(|found| value(format!("a file's name; this is {found}")))?;
        if target == Target::File {
            let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_ascii_lowercase);
            if !ending.is_some_and(|ending| rules.extensions.contains(&&*ending)) {
                let endings: Vec<String> = rules.extensions.iter().map(|ending| format!(".{ending}")).collect();
                let formats = if endings.len() == 1 { "the one format that is" } else { "the formats that are" };
                return Err(value(format!("a name that ends in {}, {formats} written", endings.join(" or "))));
            }
            // A link to a file that is missing has the name too.
            if !rules.overwrite && path.symlink_metadata().is_ok() {
                return Err(Error::Exists(path.to_path_buf()));
            }
        }
        Ok(Self { path: path.to_path_buf(), rules, target })
    }

    /// Refuses a folder that is missing or takes no files, and removes what killed runs left in it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Read`] where there is something else, [`Error::Write`].
    pub(crate) fn check_folder(&self) -> Result<()> {
        match self.target {
            Target::File => check_writable(&self.path, self.rules.what),
            _ => Ok(()),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is no regular file but a device, a FIFO or a standard stream. Writing may wait for a reader, and what
    /// is written when it fails cannot be taken back.
    pub fn is_stream(&self) -> bool {
        self.target != Target::File
    }

    /// Whether it is the standard output, which then has room for nothing else.
    pub fn is_standard_output(&self) -> bool {
        self.target == Target::StandardOutput
    }

    /// Writes what `write` gives to the writer.
    ///
    /// # Errors
    /// [`Error::Write`], or [`Error::Exists`] where somebody else made the file in the meantime.
    pub(crate) fn write(&self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
        let path = &self.path;
        // Another program may have made a device or a FIFO of this name since it was planned.
        let now = Self::named(path, FileRules { overwrite: true, ..self.rules })?;
        let written = match now.target {
            Target::File => {
                let mut file = BufWriter::new(temporary_beside(path)?);
                write(&mut file).map_err(Error::write(path))?;
                let file = file.into_inner().map_err(|error| Error::write(path)(error.into_error()))?;
                return if self.rules.overwrite { persist(file, path) } else { persist_new(file, path) };
            }
            Target::Device => {
                OpenOptions::new().write(true).open(path).and_then(|file| flushed(BufWriter::new(file), write))
            }
            Target::StandardOutput => flushed(BufWriter::new(std::io::stdout().lock()), write),
            Target::StandardError => flushed(BufWriter::new(std::io::stderr().lock()), write),
        };
        written.map_err(Error::write(path))
    }
}

fn flushed(mut to: impl Write, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> std::io::Result<()> {
    write(&mut to)?;
    to.flush()
}

/// What would be written at `path`, or what is there that cannot be.
fn target(path: &Path) -> std::io::Result<std::result::Result<Target, &'static str>> {
    if let Some(stream) = standard_stream(path) {
        return Ok(Ok(stream));
    }
    match path.metadata() {
        Ok(found) => Ok(target_of(&found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Ok(Target::File)),
        // That the folder is none, or a loop of links, is for the check of the folder to say.
        Err(_) if folder_of(path).metadata().map_or(true, |folder| !folder.is_dir()) => Ok(Ok(Target::File)),
        Err(_) if path.symlink_metadata().is_ok_and(|found| found.is_symlink()) => Ok(Ok(Target::File)),
        Err(error) => Err(error),
    }
}

fn target_of(found: &Metadata) -> std::result::Result<Target, &'static str> {
    if found.is_dir() {
        return Err("a folder");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let kind = found.file_type();
        if kind.is_char_device() || kind.is_fifo() {
            return Ok(Target::Device);
        } else if kind.is_block_device() {
            return Err("a block device");
        } else if kind.is_socket() {
            return Err("a socket");
        }
    }
    Ok(Target::File)
}

/// The stream of this process that a path names. It may be a regular file, which the shell has opened, so that its kind
/// does not tell that it must not be replaced.
fn standard_stream(path: &Path) -> Option<Target> {
    if !cfg!(unix) {
        return None;
    }
    match path.to_str()? {
        "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => Some(Target::StandardOutput),
        "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => Some(Target::StandardError),
        _ => None,
    }
}

/// Refuses a file whose folder is missing or takes no files, and removes what killed runs left there.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Read`] where there is something else, [`Error::Write`].
pub(crate) fn check_writable(path: &Path, what: &str) -> Result<()> {
    let folder = folder_of(path);
    check_folder(folder, &format!("a folder for {what}; make it first"))?;
    remove_orphans(folder);
    temporary_beside(path).map(drop)
}

/// Refuses a folder that is missing, or is something else. `looked_for` says what it is for.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Read`].
pub(crate) fn check_folder(path: &Path, looked_for: &str) -> Result<()> {
    match path.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => {
            let problem = format!("is no folder; looked for {looked_for}");
            Err(Error::read(path)(std::io::Error::new(ErrorKind::NotADirectory, problem)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Error::NotFound { path: path.to_path_buf(), looked_for: looked_for.into() })
        }
        Err(error) => Err(Error::read(path)(error)),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;

    const RULES: FileRules = FileRules { field: "trace", what: "the trace", extensions: &["json"], overwrite: true };

    fn text(to: &mut dyn Write) -> std::io::Result<()> {
        to.write_all(b"text")
    }

    #[test]
    fn devices_and_fifos_are_written_into() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        // A device that the test cannot harm, whatever it does: a link to it.
        let null = folder.path().join("null");
        symlink("/dev/null", &null).unwrap();
        for overwrite in [true, false] {
            let rules = FileRules { overwrite, ..RULES };
            let file = PlannedFile::plan(&fifo, rules).unwrap();
            let reader = std::thread::spawn({
                let fifo = fifo.clone();
                move || std::fs::read(fifo).unwrap()
            });
            file.write(text).unwrap();
            assert_eq!(reader.join().unwrap(), b"text");
            let file = PlannedFile::plan(&null, rules).unwrap();
            file.write(text).unwrap();
            assert!(file.is_stream() && !file.is_standard_output());
        }
        assert!(fifo.metadata().unwrap().file_type().is_fifo() && null.symlink_metadata().unwrap().is_symlink());
        let full = PlannedFile::plan(Path::new("/dev/full"), RULES).unwrap();
        assert!(full.write(text).unwrap_err().to_string().contains("cannot write /dev/full: No space left"));
        assert!(PlannedFile::plan(Path::new("/dev/stdout"), RULES).unwrap().is_standard_output());
    }

    #[test]
    fn what_cannot_be_written_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("old.json"), "old").unwrap();
        symlink("nowhere", path("dangling.json")).unwrap();
        symlink("loop", path("loop")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket.json")).unwrap();
        let keep = FileRules { overwrite: false, ..RULES };
        for (name, rules, told) in [
            ("old.json", keep, "exists already"),
            ("dangling.json", keep, "exists already"),
            ("a.txt", RULES, "a name that ends in .json, the one format that is written"),
            ("", RULES, "this is a folder"),
            ("socket.json", RULES, "this is a socket"),
            ("no/a.json", RULES, "no: not found; looked for a folder for the trace; make it first"),
            ("old.json/a.json", RULES, "old.json: is no folder; looked for a folder for the trace"),
            ("loop/a.json", RULES, "loop: Too many levels of symbolic links"),
        ] {
            let message = PlannedFile::plan(&path(name), rules).unwrap_err().to_string();
            assert!(message.contains(told), "{name}: {message}");
        }
        // A link is replaced, and not what it leads to.
        symlink("old.json", path("link.json")).unwrap();
        for name in ["dangling.json", "link.json"] {
            PlannedFile::plan(&path(name), RULES).unwrap().write(text).unwrap();
            assert_eq!(std::fs::read(path(name)).unwrap(), b"text");
        }
        assert_eq!(std::fs::read(path("old.json")).unwrap(), b"old");
        assert!(!path("nowhere").exists());
    }

    #[test]
    fn a_file_that_cannot_be_written_whole_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, "old").unwrap();
        let file = PlannedFile::plan(&path, RULES).unwrap();
        let full = |to: &mut dyn Write| {
            to.write_all(b"half")?;
            Err(ErrorKind::StorageFull.into())
        };
        assert!(matches!(file.write(full), Err(Error::Write { .. })));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
