//! What was planned, made and failed, in a file that survives the process.
//!
//! The file is JSON Lines; lines are only ever added, and each is on the disk before what it tells happens or counts:
//!
//! ```text
//! {"kiln":"batch journal","version":1}
//! {"plan":"5d3f0a...","number":1,"file":"00001-42.png","seed":42}
//! {"made":"5d3f0a...","bytes":61234,"seconds":{"encode":0.1,"denoise":1.2,"decode":0.1,"save":0.02}}
//! {"failed":"77ab12...","error":"--width is 100, expected ..."}
//! ```
//!
//! Pictures go by what they are known by, so that a job that moved in its file is still the same. `plan` fixes the name
//! and the seeds, drawn ones too. `made` is written when the picture is on the disk under a temporary name, before it
//! gets its own: a file with that name and that size is this picture. The last of a picture's `made` and `failed` counts.
//! A last line that is torn is cut off. What an unknown object says is passed over, so that a later version may say more.

use std::collections::HashMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

const MAGIC: &str = "batch journal";
const VERSION: u32 = 1;

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
    },
    Failed {
        failed: String,
        error: String,
    },
    /// Something of a later version.
    Other {},
}

/// What is fixed of a picture before it is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Planned {
    pub(crate) number: usize,
    /// Below the set's folder.
    pub(crate) file: String,
    pub(crate) seed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) subseed: Option<u64>,
}

/// A picture that was made.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Made {
    /// The file's size.
    pub(crate) bytes: u64,
    pub(crate) seconds: Seconds,
}

/// How long a picture took; where several were made at once, its part.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Seconds {
    /// Encoding prompts, and reading weights for it.
    pub encode: f64,
    /// All calls of the denoiser.
    pub denoise: f64,
    /// Decoding.
    pub decode: f64,
    /// Compressing and writing, on another thread.
    pub save: f64,
}

/// What is known of a picture.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Record {
    pub(crate) planned: Option<Planned>,
    pub(crate) made: Option<Made>,
    pub(crate) failed: Option<String>,
}

/// The records of a journal, by what pictures are known by.
pub(crate) type Records = HashMap<String, Record>;

/// A journal that nobody else writes to.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Opens the journal at `path`, or begins it, and reads what it has.
    ///
    /// # Errors
    /// [`Error::Busy`] where another process writes to it, [`Error::Job`] where it is none, [`Error::Read`] and
    /// [`Error::Write`].
    pub(crate) fn open(path: &Path) -> Result<(Self, Records)> {
        let options = OpenOptions::new().read(true).append(true).create(true).clone();
        let mut file = options.open(path).map_err(Error::write(path))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Error::Busy(path.to_path_buf())),
            // Some network file systems have no locks.
            Err(TryLockError::Error(error)) => tracing::warn!("{} is not locked: {error}", path.display()),
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(Error::read(path))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        if whole < bytes.len() {
            tracing::warn!("{}: the last line is torn and is cut off", path.display());
            file.set_len(whole as u64).map_err(Error::write(path))?;
            file.seek(SeekFrom::End(0)).map_err(Error::write(path))?;
        }
        let records = whole_lines(path, &bytes[..whole])?;
        let mut this = Self { path: path.to_path_buf(), file };
        if whole == 0 {
            this.append(&[Line::Head { kiln: MAGIC.into(), version: VERSION }])?;
        }
        Ok((this, records))
    }

    /// Reads a journal that another process may be writing to.
    ///
    /// # Errors
    /// As [`Self::open`], but for locks.
    pub(crate) fn peek(path: &Path) -> Result<Records> {
        let bytes = std::fs::read(path).map_err(Error::read(path))?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        whole_lines(path, &bytes[..whole])
    }

    /// Adds lines, which are on the disk when this returns.
    ///
    /// # Errors
    /// [`Error::Write`].
    pub(crate) fn append(&mut self, lines: &[Line]) -> Result<()> {
        let mut bytes = Vec::new();
        let written = lines.iter().try_for_each(|line| {
            serde_json::to_writer(&mut bytes, line)?;
            bytes.push(b'\n');
            Ok(())
        });
        // One call, so that a kill tears one line at the most.
        let written = written.and_then(|()| self.file.write_all(&bytes)).and_then(|()| self.file.sync_data());
        written.map_err(Error::write(&self.path))
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Reads the whole lines of a file.
fn whole_lines(path: &Path, bytes: &[u8]) -> Result<Records> {
    read(bytes).map_err(|(line, problem)| Error::Job { file: path.display().to_string(), line, problem })
}

/// Reads whole lines, or tells which one is wrong.
fn read(bytes: &[u8]) -> std::result::Result<Records, (usize, String)> {
    let mut records = Records::new();
    for (i, line) in bytes.split(|byte| *byte == b'\n').enumerate().filter(|(_, line)| !line.is_empty()) {
        let wrong = |problem: String| (i + 1, format!("{problem}; move the journal away to begin anew"));
        let line = serde_json::from_slice(line).map_err(|error| wrong(format!("is no line of a journal: {error}")))?;
        match line {
            Line::Head { kiln, version } if kiln == MAGIC && version == VERSION => {}
            Line::Head { version, .. } => {
                return Err(wrong(format!("is a journal of version {version}, expected {VERSION}")));
            }
            _ if i == 0 => return Err(wrong("is no journal of kiln batch".into())),
            Line::Plan { plan, planned } => records.entry(plan).or_default().planned = Some(planned),
            Line::Made { made, made_file } => {
                let record = records.entry(made).or_default();
                (record.made, record.failed) = (Some(made_file), None);
            }
            Line::Failed { failed, error } => {
                let record = records.entry(failed).or_default();
                (record.made, record.failed) = (None, Some(error));
            }
            Line::Other {} => {}
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
            Line::Made { made: "a".into(), made_file: MADE },
            Line::Made { made: "b".into(), made_file: MADE },
            Line::Failed { failed: "b".into(), error: "no".into() },
        ]
    }

    #[test]
    fn the_last_word_counts_and_a_torn_line_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        let (mut journal, records) = Journal::open(&path).unwrap();
        assert!(records.is_empty());
        journal.append(&lines()).unwrap();
        assert!(matches!(Journal::open(&path), Err(Error::Busy(_))));
        drop(journal);
        let a = Record { planned: Some(planned(1)), made: Some(MADE), failed: None };
        let planned = Some(Planned { subseed: Some(3), ..planned(2) });
        let b = Record { planned, made: None, failed: Some("no".into()) };
        let expected = Records::from([("a".into(), a), ("b".into(), b)]);
        assert_eq!(Journal::open(&path).unwrap().1, expected);
        // Cut at every byte of the last line, the journal says what it said before that line, and goes on.
        let whole = std::fs::read(&path).unwrap();
        let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
        for end in last..whole.len() {
            std::fs::write(&path, &whole[..end]).unwrap();
            let (mut journal, records) = Journal::open(&path).unwrap();
            assert!(records["b"].failed.is_none() && records["b"].made == Some(MADE));
            journal.append(&lines()[5..]).unwrap();
            drop(journal);
            assert_eq!(std::fs::read(&path).unwrap(), whole);
        }
    }

    #[test]
    fn what_is_no_journal_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal.jsonl");
        for (text, told) in [
            ("{\"prompt\": \"a\"}\n", ":1: is no journal of kiln batch"),
            ("{\"kiln\":\"batch journal\",\"version\":2}\n", ":1: is a journal of version 2, expected 1"),
            ("{\"kiln\":\"batch journal\",\"version\":1}\nnonsense\n", ":2: is no line of a journal"),
        ] {
            std::fs::write(&path, text).unwrap();
            let message = Journal::open(&path).unwrap_err().to_string();
            assert!(message.contains(told), "{message}");
        }
        std::fs::write(&path, "{\"kiln\":\"batch journal\",\"version\":1}\n{\"later\":1}\n").unwrap();
        assert!(Journal::open(&path).unwrap().1.is_empty());
    }
}
