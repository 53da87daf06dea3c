//! A file that a run will write: the checks before the run, and how the file is written.
//!
//! - Its folder must exist and be writable. A folder, a block device or a socket with the file's name is an error.
//! - A regular file with its name, or a link of any kind, is replaced if that is allowed, and is an error otherwise.
//!   The file is written under a temporary name in the same folder and renamed, so that it appears complete or not at
//!   all.
//! - A character device or a FIFO is opened and written: `/dev/null` is never replaced, and `mkfifo` and process
//!   substitution work. `/dev/stdout` and its other names are the standard output, whatever its type, on every system.
//!   The twins on Windows are `NUL` and named pipes.

use std::fs::{Metadata, OpenOptions};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, read_error, write_error};
use crate::file_name::name_problem;
use crate::temporary::{folder_of, persist, persist_new, remove_orphans, temporary_beside};

/// The rules for an output file.
#[derive(Debug, Clone, Copy)]
pub struct FileRules {
    /// The field that contains the path, for messages.
    pub field: &'static str,
    /// A name of the file for messages: "the trace".
    pub what: &'static str,
    /// The allowed extensions of a regular file, in lower case.
    pub extensions: &'static [&'static str],
    /// Whether an existing file is replaced.
    pub overwrite: bool,
}

impl FileRules {
    /// The error for a path that cannot be used for this file.
    pub fn refused(&self, path: &Path, expected: impl Into<String>) -> Error {
        Error::Value { field: self.field, found: format!("'{}'", path.display()), expected: expected.into() }
    }
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
    /// Written under a temporary name and renamed.
    File,
    /// A character device or a FIFO, opened and written into.
    Device,
    StandardOutput,
    StandardError,
}

impl PlannedFile {
    /// Plans a file, with all checks.
    ///
    /// # Errors
    /// See [`Self::named`] and [`Self::check_folder`].
    pub fn plan(path: &Path, rules: FileRules) -> Result<Self> {
        let this = Self::named(path, rules)?;
        this.check_folder()?;
        Ok(this)
    }

    /// Plans a file whose folder is checked separately.
    ///
    /// # Errors
    /// [`Error::Value`] if `path` is a folder or something else that cannot be written, or has another extension,
    /// [`Error::Exists`] if a file would have to be replaced and must not be, [`Error::Write`] if the system does not
    /// report the type.
    pub fn named(path: &Path, rules: FileRules) -> Result<Self> {
        let value = |expected: String| rules.refused(path, expected);
        let target = target(path).map_err(write_error(path))?;
        let target = target.map_err(|found| value(format!("a file name, found {found}")))?;
        if target == Target::File {
            let ending = path.extension().and_then(|ending| ending.to_str()).map(str::to_ascii_lowercase);
            if !ending.is_some_and(|ending| rules.extensions.contains(&&*ending)) {
                let endings: Vec<String> = rules.extensions.iter().map(|ending| format!(".{ending}")).collect();
                let formats = if endings.len() == 1 { "the only format that is" } else { "the formats that are" };
                return Err(value(format!("a name that ends in {}, {formats} written", endings.join(" or "))));
            }
            if let Some(problem) = path.file_name().and_then(|name| name_problem(&name.to_string_lossy())) {
                return Err(value(format!("another name: this one {problem}")));
            }
            // A link to a missing file also occupies the name.
            if !rules.overwrite && path.symlink_metadata().is_ok() {
                return Err(Error::Exists(path.to_path_buf()));
            }
        }
        Ok(Self { path: path.to_path_buf(), rules, target })
    }

    /// Fails if the folder is missing or not writable, and deletes the temporary files of killed runs in it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Read`] if it is not a folder, [`Error::Write`].
    pub fn check_folder(&self) -> Result<()> {
        match self.target {
            Target::File => check_writable(&self.path, self.rules.what),
            _ => Ok(()),
        }
    }

    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a device, a FIFO or a standard stream instead of a regular file. Writing may wait for a reader,
    /// and data written before a failure cannot be taken back.
    pub fn is_stream(&self) -> bool {
        self.target != Target::File
    }

    /// Whether it is the standard output, which then cannot carry anything else.
    pub fn is_standard_output(&self) -> bool {
        self.target == Target::StandardOutput
    }

    /// Writes the file with the function `write`.
    ///
    /// # Errors
    /// [`Error::Write`], or [`Error::Exists`] if another program created the file in the meantime.
    pub fn write(&self, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
        let path = &self.path;
        // Another program may have created a device or a FIFO with this name since it was planned.
        let now = Self::named(path, FileRules { overwrite: true, ..self.rules })?;
        let written = match now.target {
            Target::File => {
                let mut file = BufWriter::new(temporary_beside(path)?);
                write(&mut file).map_err(write_error(path))?;
                let file = file.into_inner().map_err(|error| write_error(path)(error.into_error()))?;
                return if self.rules.overwrite { persist(file, path) } else { persist_new(file, path) };
            }
            Target::Device => {
                OpenOptions::new().write(true).open(path).and_then(|file| flushed(BufWriter::new(file), write))
            }
            Target::StandardOutput => flushed(BufWriter::new(std::io::stdout().lock()), write),
            Target::StandardError => flushed(BufWriter::new(std::io::stderr().lock()), write),
        };
        written.map_err(write_error(path))
    }
}

fn flushed(mut to: impl Write, write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> std::io::Result<()> {
    write(&mut to)?;
    to.flush()
}

/// The target of a write to `path`, or a description of the existing entry that cannot be written.
fn target(path: &Path) -> std::io::Result<std::result::Result<Target, &'static str>> {
    if let Some(stream) = standard_stream(path) {
        return Ok(Ok(stream));
    }
    if cfg!(windows) && is_windows_device(path) {
        return Ok(Ok(Target::Device));
    }
    match path.metadata() {
        Ok(found) => Ok(target_of(&found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(Ok(Target::File)),
        // The check of the folder reports a path that is not a folder and a loop of links.
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

/// The stream of this process that a path names. It may be a regular file that the shell has opened, so its type does
/// not show that it must not be replaced.
fn standard_stream(path: &Path) -> Option<Target> {
    match path.to_str()? {
        "/dev/stdout" | "/dev/fd/1" | "/proc/self/fd/1" => Some(Target::StandardOutput),
        "/dev/stderr" | "/dev/fd/2" | "/proc/self/fd/2" => Some(Target::StandardError),
        _ => None,
    }
}

/// Whether a path of Windows is the device that takes everything, or a named pipe. Windows reports no type for them.
fn is_windows_device(path: &Path) -> bool {
    let name = path.to_string_lossy().replace('/', "\\").to_ascii_lowercase();
    matches!(&*name, "nul" | r"\\.\nul") || name.starts_with(r"\\.\pipe\")
}

/// Fails if the folder of a file is missing or not writable, and deletes the temporary files of killed runs there.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Read`] if it is not a folder, [`Error::Write`].
pub fn check_writable(path: &Path, what: &str) -> Result<()> {
    let folder = folder_of(path);
    check_folder(folder, &format!("a folder for {what}; create it first"))?;
    remove_orphans(folder);
    temporary_beside(path).map(drop)
}

/// Fails if a folder is missing or is not a folder. `looked_for` describes its purpose.
///
/// # Errors
/// [`Error::NotFound`], [`Error::Read`].
pub fn check_folder(path: &Path, looked_for: &str) -> Result<()> {
    match path.metadata() {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => {
            let problem = format!("is not a folder; looked for {looked_for}");
            Err(read_error(path)(std::io::Error::new(ErrorKind::NotADirectory, problem)))
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Error::NotFound { path: path.to_path_buf(), looked_for: looked_for.into() })
        }
        Err(error) => Err(read_error(path)(error)),
    }
}

#[cfg(test)]
mod tests {
    #[cfg(unix)]
    use std::os::unix::fs::{FileTypeExt, symlink};

    use super::*;

    const RULES: FileRules = FileRules { field: "trace", what: "the trace", extensions: &["json"], overwrite: true };

    fn text(to: &mut dyn Write) -> std::io::Result<()> {
        to.write_all(b"text")
    }

    #[test]
    fn devices_of_windows_are_found_by_name() {
        for (name, is_device) in [
            ("NUL", true),
            ("nul", true),
            (r"\\.\NUL", true),
            (r"\\.\pipe\images", true),
            ("//./pipe/images", true),
            ("nul.json", false),
            (r"C:\NUL.json", false),
            ("pipe", false),
        ] {
            assert_eq!(is_windows_device(Path::new(name)), is_device, "{name}");
        }
        let null = PlannedFile::plan(Path::new(if cfg!(windows) { "NUL" } else { "/dev/null" }), RULES).unwrap();
        null.write(text).unwrap();
        assert!(null.is_stream() && !null.is_standard_output());
        assert!(PlannedFile::plan(Path::new("/dev/stdout"), RULES).unwrap().is_standard_output());
    }

    /// Names that other systems have and Windows has not are refused there before anything runs.
    #[test]
    fn names_with_spaces_and_umlauts_are_written_and_reserved_ones_are_refused_on_windows() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("Bilder für Zoë");
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("ein Füchslein 狐.json");
        PlannedFile::plan(&path, RULES).unwrap().write(text).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"text");
        for name in ["CON.json", "what?.json", "a:b.json"] {
            assert_eq!(PlannedFile::plan(&folder.join(name), RULES).is_err(), cfg!(windows), "{name}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn devices_and_fifos_are_written_into() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        // A link to a device that the test cannot damage.
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

    #[cfg(unix)]
    #[test]
    fn unwritable_paths_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("old.json"), "old").unwrap();
        symlink("nowhere", path("dangling.json")).unwrap();
        symlink("loop", path("loop")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(path("socket.json")).unwrap();
        let keep = FileRules { overwrite: false, ..RULES };
        for (name, rules, expected) in [
            ("old.json", keep, "exists already"),
            ("dangling.json", keep, "exists already"),
            ("a.txt", RULES, "a name that ends in .json, the only format that is written"),
            ("", RULES, "found a folder"),
            ("socket.json", RULES, "found a socket"),
            ("no/a.json", RULES, "no: not found; looked for a folder for the trace; create it first"),
            ("old.json/a.json", RULES, "old.json: is not a folder; looked for a folder for the trace"),
            ("loop/a.json", RULES, "loop: Too many levels of symbolic links"),
        ] {
            let message = PlannedFile::plan(&path(name), rules).unwrap_err().to_string();
            assert!(message.contains(expected), "{name}: {message}");
        }
        // The link itself is replaced, not its target.
        symlink("old.json", path("link.json")).unwrap();
        for name in ["dangling.json", "link.json"] {
            PlannedFile::plan(&path(name), RULES).unwrap().write(text).unwrap();
            assert_eq!(std::fs::read(path(name)).unwrap(), b"text");
        }
        assert_eq!(std::fs::read(path("old.json")).unwrap(), b"old");
        assert!(!path("nowhere").exists());
    }

    #[test]
    fn an_incomplete_write_keeps_the_old_file() {
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
