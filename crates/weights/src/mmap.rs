//! A file mapped into memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use kiln_files::open_regular;
use memmap2::Mmap;

use crate::error::{Error, Result};

/// A mapped file. As bytes it is what the file had when it was opened, for what is read at once; what is read later goes
/// through [`Mapped::bytes`].
pub(crate) struct Mapped {
    map: Mmap,
    file: File,
    path: PathBuf,
}

impl Mapped {
    /// The bytes of `range`.
    ///
    /// Pages past the end of a file cannot be read: the system ends the process with SIGBUS. So the file's length is
    /// asked for first, one call of the system for each tensor. What remains is the moment between that and the reading.
    ///
    /// # Errors
    /// [`Error::Format`] where the file does not reach so far, or no longer does.
    pub(crate) fn bytes(&self, range: Range<usize>) -> Result<&[u8]> {
        let length = self.file.metadata().map_err(|source| Error::Io { path: self.path.clone(), source })?.len();
        match self.map.get(range.clone()) {
            Some(bytes) if range.end as u64 <= length => Ok(bytes),
            _ => Err(Error::Format {
                path: self.path.clone(),
                problem: format!(
                    "has {length} bytes, and had {} when it was opened: another program has cut it, or writes it anew",
                    self.map.len()
                ),
            }),
        }
    }

    /// Takes the pages of `range` out of this process's memory.
    pub(crate) fn forget(&self, range: Range<usize>) {
        forget(&self.map, range);
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Maps a regular file for reading. An empty file maps to an empty slice.
pub(crate) fn map(path: &Path) -> Result<Mapped> {
    let io_error = |source| Error::Io { path: path.to_path_buf(), source };
    let file = open_regular(path).map_err(io_error)?;
    // SAFETY: the mapping is read-only and private to this process's view of the file. What the type system cannot
    // rule out is another process that shortens or rewrites the file while it is mapped: then reads see other bytes or
    // the system ends the process ([`Mapped::bytes`] makes that unlikely). Bytes are only ever read as
    // plain numbers whose every bit pattern is valid, so changed bytes cannot break memory safety here.
    let map = unsafe { Mmap::map(&file) }.map_err(io_error)?;
    Ok(Mapped { map, file, path: path.to_path_buf() })
}

/// Takes the pages of `range` out of this process's memory, those that it shares with its neighbours too: they stay in
/// the system's cache, and come back when they are read. A range past the end is ignored, and so is a system that does
/// not want to.
#[cfg(unix)]
fn forget(map: &Mmap, range: Range<usize>) {
    if map.get(range.clone()).is_some_and(|bytes| !bytes.is_empty()) {
        // SAFETY: the mapping is of a file and read-only, so no page of it was ever written, and what is read after
        // this call comes from the same file: no byte changes. The range lies inside of the mapping.
        let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
    }
}

/// Other systems have no such call.
#[cfg(not(unix))]
fn forget(_map: &Mmap, _range: Range<usize>) {}
