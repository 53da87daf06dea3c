//! A file mapped into memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use kiln_files::open_regular;
use memmap2::Mmap;

use crate::error::{Error, Result};

/// A mapped file. It dereferences to the bytes as of opening, for immediate reads. Later reads go through
/// [`Mapped::bytes`].
pub(crate) struct Mapped {
    map: Mmap,
    file: File,
    path: PathBuf,
}

impl Mapped {
    /// The bytes of `range`.
    ///
    /// Pages past the end of a file cannot be read: the operating system ends the process with SIGBUS. So this function
    /// checks the file's length first, with one system call for each tensor. A race remains between the check and the
    /// read.
    ///
    /// # Errors
    /// [`Error::Format`] if the range is past the file's end, or the file has become shorter.
    pub(crate) fn bytes(&self, range: Range<usize>) -> Result<&[u8]> {
        let length = self.file.metadata().map_err(|source| Error::Io { path: self.path.clone(), source })?.len();
        match self.map.get(range.clone()) {
            Some(bytes) if range.end as u64 <= length => Ok(bytes),
            _ => Err(Error::Format {
                path: self.path.clone(),
                problem: format!(
                    "has {length} bytes, but had {} when it was opened: another program truncated it, or is rewriting it",
                    self.map.len()
                ),
            }),
        }
    }

    /// Removes the pages of `range` from this process's memory.
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
    // SAFETY: the mapping is read-only and private to this process's view of the file. The type system cannot rule out
    // that another process shortens or rewrites the file while it is mapped: then reads return other bytes, or the
    // operating system ends the process ([`Mapped::bytes`] makes that unlikely). Bytes are only read as plain numbers
    // for which every bit pattern is valid, so changed bytes cannot break memory safety here.
    let map = unsafe { Mmap::map(&file) }.map_err(io_error)?;
    Ok(Mapped { map, file, path: path.to_path_buf() })
}

/// Removes the pages of `range` from this process's memory, including those that it shares with adjacent ranges. They
/// stay in the page cache, and are mapped again when they are read. A range past the end is ignored, and so is an error
/// of the system call.
#[cfg(unix)]
fn forget(map: &Mmap, range: Range<usize>) {
    if map.get(range.clone()).is_some_and(|bytes| !bytes.is_empty()) {
        // SAFETY: the mapping is of a file and read-only, so no page of it was ever written, and later reads return
        // data of the same file: no byte changes. The range lies inside the mapping.
        let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
    }
}

/// Other systems do not have this call.
#[cfg(not(unix))]
fn forget(_map: &Mmap, _range: Range<usize>) {}
