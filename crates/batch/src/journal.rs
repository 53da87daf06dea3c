//! The journal: planned, finished and failed images, in a file that survives the process.
//!
//! The file is JSON Lines. Lines are only appended, and each is on disk before the state that it describes takes
//! effect:
//!
//! ```text
//! {"kiln":"batch journal","version":1}
//! {"plan":"5d3f0a...","number":1,"file":"00001-42.png","seed":42}
//! {"made":"5d3f0a...","bytes":61234,"seconds":{"encode":0.1,"denoise":1.2,"decode":0.1,"save":0.02},"part":".kiln-f3K0aB.part"}
//! {"failed":"77ab12...","error":"`width` is 100, expected ..."}
//! ```
//!
//! Images are keyed by content, so that a job keeps its images when it moves in its file. `plan` fixes the name and the
//! seeds, including random ones. `made` is written when the image is on disk under a temporary name, before it is
//! renamed: a file with that name and size is this image. A process that is killed in between leaves the image under the
//! temporary name, `part`, and the next run renames it. The last `made` or `failed` of an image is valid. An
//! incomplete last line is removed. Unknown objects are ignored, so that later versions may add some.

use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use kiln_weights::{open_regular, read_small};
use same_file::Handle;
use serde::{Deserialize, Serialize};

use super::journal_file::{is_written, open_to_write};
use super::names::check_file;
use crate::error::{Error, Result};

const MAGIC: &str = "batch journal";
const VERSION: u32 = 1;
/// Some hundred bytes for each of a set's 100,000 images, and the same again for each run that failed.
const MAX_BYTES: u64 = 512 << 20;

/// A line of the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub(crate) enum Line {
    Head {
        kiln: String,
        version: u32,
    },
    Plan {
        plan: String,
        #[serde(flatten)]
        planned: Planned,
    },
    Made {
        made: String,
        #[serde(flatten)]
        made_file: Made,
        /// The file's temporary name in its folder.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        part: Option<String>,
    },
    Failed {
        failed: String,
        error: String,
    },
    /// An object of a later version.
    Other {},
}

/// The fixed properties of a planned image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Planned {
    pub(crate) number: usize,
    /// Relative to the set's folder.
    pub(crate) file: String,
    pub(crate) seed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subseed: Option<u64>,
}

/// A finished image.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Made {
    /// The file's size.
    pub(crate) bytes: u64,
    pub(crate) seconds: Seconds,
}

/// The times of an image; for a batch, its share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Encoding prompts, including reading weights.
    pub encode: f64,
    /// All calls of the denoiser.
    pub denoise: f64,
    /// Decoding.
    pub decode: f64,
    /// Compressing and writing, on another thread.
    pub save: f64,
}

/// The state of an image.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Record {
    pub(crate) planned: Option<Planned>,
    pub(crate) made: Option<Made>,
    /// The temporary name of the finished image.
    pub(crate) part: Option<String>,
    pub(crate) failed: Option<String>,
}

/// The records of a journal by image key.
pub(crate) type Records = HashMap<String, Record>;

/// A journal that only this process writes.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens or creates the journal at `path` and reads it. A file that is not a journal is not changed.
    ///
    /// # Errors
    /// [`Error::Busy`] if another process writes to it, [`Error::Job`] if it is no journal, [`kiln_engine::Error::Files`].
    pub(crate) fn open(path: &Path) -> Result<(Self, Records)> {
        match path.metadata() {
            Ok(found) if !found.is_file() => {
                let error = std::io::Error::new(std::io::ErrorKind::InvalidInput, "is not a regular file");
                return Err(Error::read(path)(error));
            }
            _ => {}
        }
        let opened = open_to_write(path).map_err(Error::write(path))?;
        let mut file = opened.ok_or_else(|| Error::Busy(path.to_path_buf()))?;
        let mut bytes = Vec::new();
        (&mut file).take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(Error::read(path))?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(no_journal(path, 1));
        }
        let whole = whole(&bytes);
        let first = [Line::Head { kiln: MAGIC.into(), version: VERSION }];
        let head = bytes_of(&first).map_err(Error::write(path))?;
        // Check first, then remove: a file without a complete line must be the start of the first one.
        if whole == 0 && !head.starts_with(&bytes) {
            return Err(no_journal(path, 1));
        }
        let records = whole_lines(path, &bytes[..whole])?;
        if whole < bytes.len() {
            tracing::warn!("{}: the last line is incomplete and is removed", path.display());
            shorten(&file, whole as u64).map_err(Error::write(path))?;
        }
        let this = Self { path: path.to_path_buf(), file };
        if whole == 0 {
            this.write(&first).map_err(Error::write(path))?;
        }
        Ok((this, records))
    }

    /// Reads a journal that another process may be writing.
    ///
    /// # Errors
    /// See [`Self::open`], except for locks.
    pub(crate) fn peek(path: &Path) -> Result<Records> {
        let bytes = read_small(path, MAX_BYTES).map_err(Error::read(path))?;
        let whole = whole(&bytes);
        whole_lines(path, &bytes[..whole])
    }

    /// Whether another process is writing a journal. `false` if the file system has no locks.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Files`].
    pub(crate) fn is_written(path: &Path) -> Result<bool> {
        let file = open_regular(path).map_err(Error::read(path))?;
        Ok(is_written(&file, path))
    }

    /// Fails if the journal no longer has its name: its folder was moved or deleted, and images would be lost from now
    /// on.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Files`].
    pub(crate) fn check_place(&self) -> Result<()> {
        let open = self.file.try_clone().and_then(Handle::from_file).map_err(Error::write(&self.path))?;
        // Opening a FIFO would wait.
        let named = self.path.metadata().and_then(|found| match found.is_file() {
            true => Handle::from_path(&self.path),
            false => Err(std::io::ErrorKind::NotFound.into()),
        });
        match named {
            Ok(named) if named == open => return Ok(()),
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Error::write(&self.path)(error)),
            _ => {}
        }
        let problem = "the folder or the journal was moved or deleted during the run";
        Err(Error::write(&self.path)(std::io::Error::new(std::io::ErrorKind::NotFound, problem)))
    }

    /// Appends lines, which are on disk when this returns.
    ///
    /// # Errors
    /// [`kiln_engine::Error::Files`].
    pub(crate) fn append(&mut self, lines: &[Line]) -> Result<()> {
        self.write(lines).map_err(Error::write(&self.path))
    }

    /// Writes lines, for callers of which one writes at a time. One write call, so that a kill leaves at most one incomplete
    /// line. On a full disk the written part is removed, because the next line would be appended to it.
    ///
    /// # Errors
    /// Errors of the file.
    pub(crate) fn write(&self, lines: &[Line]) -> std::io::Result<()> {
        let bytes = bytes_of(lines)?;
        let before = self.file.metadata()?.len();
        (&self.file).write_all(&bytes).and_then(|()| self.file.sync_data()).inspect_err(|_| {
            let _ = shorten(&self.file, before);
        })
    }

    /// One on a disk without room.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn full() -> Self {
        let path = PathBuf::from("/dev/full");
        let file = File::options().append(true).open(&path).unwrap();
        Self { path, file }
    }

    /// Its path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Removes the bytes from `len` on. The next write begins there, also through a handle that does not append.
fn shorten(mut file: &File, len: u64) -> std::io::Result<()> {
    file.set_len(len)?;
    file.seek(SeekFrom::End(0)).map(drop)
}

fn bytes_of(lines: &[Line]) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    for line in lines {
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
    }
    Ok(bytes)
}

/// Bytes of the complete lines.
fn whole(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1)
}

fn no_journal(path: &Path, line: usize) -> Error {
    let problem = "is not a journal of kiln batch; move the file, or choose another folder".into();
    Error::Job { file: path.display().to_string(), line, problem }
}

/// Whether a name is that of a temporary file, without a folder.
fn check_part(name: &str) -> bool {
    let is_name = Path::new(name).file_name() == Some(name.as_ref());
    is_name && name.starts_with(".kiln-") && name.ends_with(".part")
}

/// Parses the complete lines of a file.
fn whole_lines(path: &Path, bytes: &[u8]) -> Result<Records> {
    let mut records = Records::new();
    let lines = bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty());
    let mut has_head = false;
    for (i, line) in lines {
        let wrong = |problem: String| {
            let problem = format!("{problem}; move the journal to another folder to start again");
            Error::Job { file: path.display().to_string(), line: i + 1, problem }
        };
        match serde_json::from_slice(line) {
            Ok(Line::Head { kiln, version }) if kiln == MAGIC && version == VERSION => has_head = true,
            Ok(Line::Head { kiln, version }) if kiln == MAGIC => {
                return Err(wrong(format!("is a journal of version {version}, expected {VERSION}")));
            }
            _ if !has_head => return Err(no_journal(path, i + 1)),
            Err(error) => return Err(wrong(format!("is not a line of a journal: {error}"))),
            // The file is untrusted: it must not name files outside of the folder.
            Ok(Line::Plan { plan, mut planned }) => {
                planned.file = check_file(&planned.file).map_err(|problem| wrong(format!("the file {problem}")))?;
                records.entry(plan).or_default().planned = Some(planned);
            }
            Ok(Line::Made { made, made_file, part }) => {
                let record = records.entry(made).or_default();
                // The file is untrusted here, too.
                let part = part.filter(|name| check_part(name));
                (record.made, record.part, record.failed) = (Some(made_file), part, None);
            }
            Ok(Line::Failed { failed, error }) => {
                let record = records.entry(failed).or_default();
                (record.made, record.part, record.failed) = (None, None, Some(error));
            }
            Ok(Line::Head { .. } | Line::Other {}) => {}
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(number: usize) -> Planned {
        Planned { number, file: format!("{number}.png"), seed: 7, subseed: None }
    }

    const MADE: Made = Made { bytes: 5, seconds: Seconds { encode: 0.5, denoise: 1.0, decode: 0.25, save: 0.0 } };

    fn lines() -> Vec<Line> {
        vec![
            Line::Plan { plan: "a".into(), planned: planned(1) },
            Line::Plan { plan: "b".into(), planned: Planned { subseed: Some(3), ..planned(2) } },
            Line::Failed { failed: "a".into(), error: "no".into() },
            Line::Made { made: "a".into(), made_file: MADE, part: Some(".kiln-0a1B2c.part".into()) },
            Line::Made { made: "b".into(), made_file: MADE, part: Some("../.kiln-0a1B2c.part".into()) },
            Line::Failed { failed: "b".into(), error: "no".into() },
        ]
    }

    #[test]
    fn the_last_entry_is_valid_and_an_incomplete_line_is_ignored() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let (mut journal, records) = Journal::open(&path).unwrap();
        assert!(records.is_empty());
        journal.append(&lines()).unwrap();
        assert!(matches!(Journal::open(&path), Err(Error::Busy(_))));
        drop(journal);
        let part = Some(".kiln-0a1B2c.part".to_string());
        let a = Record { planned: Some(planned(1)), made: Some(MADE), part, failed: None };
        let planned = Some(Planned { subseed: Some(3), ..planned(2) });
        let b = Record { planned, made: None, part: None, failed: Some("no".into()) };
        let expected = Records::from([("a".into(), a), ("b".into(), b)]);
        assert_eq!(Journal::open(&path).unwrap().1, expected);
        // Truncated at any byte of the last line, the journal has the state before that line and can be continued.
        let whole = std::fs::read(&path).unwrap();
        let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        for end in last..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let (mut journal, records) = Journal::open(&path).unwrap();
            assert!(records["b"].failed.is_none() && records["b"].made == Some(MADE));
            assert_eq!(records["b"].part, None, "a name in another folder is no temporary name");
            journal.append(&lines()[5..]).unwrap();
            drop(journal);
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn other_files_are_refused_and_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let head = "{\"kiln\":\"batch journal\",\"version\":1}";
        let plan = |file: &str| format!("{head}\n{{\"plan\":\"a\",\"number\":1,\"file\":{file:?},\"seed\":1}}\n");
        for (text, expected) in [
            ("{\"prompt\": \"a\"}\n".to_string(), ":1: is not a journal of kiln batch"),
            ("my notes, no newline".into(), ":1: is not a journal of kiln batch"),
            ("line 1\nline 2, no newline".into(), ":1: is not a journal of kiln batch"),
            ("{\"kiln\":\"something\",\"version\":1}\n".into(), ":1: is not a journal of kiln batch"),
            (format!("\n{{\"later\":1}}\n{head}\n"), ":2: is not a journal of kiln batch"),
            (head.replace(":1", ":2") + "\n", ":1: is a journal of version 2, expected 1"),
            (format!("{head}\nnonsense\ntorn"), ":2: is not a line of a journal"),
            (plan("/tmp/a.png"), ":2: the file '/tmp/a.png' is not a name below the output folder"),
            (plan("../a.png"), ":2: the file '../a.png' is not a name below the output folder"),
            (plan("a/../../b.png"), ":2: the file"),
            (plan("evil.desktop"), ":2: the file 'evil.desktop' does not end in .png"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let message = Journal::open(&path).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::write(&path, format!("{head}\n{{\"later\":1}}\n")).unwrap();
        assert!(Journal::open(&path).unwrap().1.is_empty());
        // Killed during its creation.
        for end in 0..=head.len() {
            std::fs::write(&path, &head[..end]).unwrap();
            assert!(Journal::open(&path).unwrap().1.is_empty());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), format!("{head}\n"));
        }
        #[cfg(unix)]
        {
            std::fs::remove_file(&path).unwrap();
            assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
            assert!(Journal::open(&path).unwrap_err().to_string().contains("is not a regular file"));
            assert!(Journal::peek(&path).unwrap_err().to_string().contains("is a FIFO"));
        }
    }

    #[test]
    fn a_moved_journal_is_detected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let (journal, _) = Journal::open(&path).unwrap();
        journal.check_place().unwrap();
        assert!(Journal::is_written(&path).unwrap());
        assert!(Journal::peek(&path).unwrap().is_empty(), "others can read it");
        std::fs::rename(&path, folder.path().join("away")).unwrap();
        let message = journal.check_place().unwrap_err().to_string();
        assert!(message.contains("was moved or deleted"), "{message}");
        drop(journal);
        std::fs::write(&path, "").unwrap();
        assert!(!Journal::is_written(&path).unwrap());
    }
}
