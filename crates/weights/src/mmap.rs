//! A file mapped into memory.
#![allow(unsafe_code)]

use std::ops::Range;
use std::path::Path;

use memmap2::Mmap;

use crate::error::{Error, Result};
use crate::small_file::open_regular;

/// Maps a regular file for reading. An empty file maps to an empty slice.
pub(crate) fn map(path: &Path) -> Result<Mmap> {
    let io_error = |source| Error::Io { path: path.to_path_buf(), source };
    let file = open_regular(path).map_err(io_error)?;
    // SAFETY: the mapping is read-only and private to this process's view of the file. What the type system cannot
    // rule out is another process that shortens or rewrites the file while it is mapped: then reads see other bytes or
    // the system ends the process. Every engine that maps checkpoints lives with that; bytes are only ever read as
    // plain numbers whose every bit pattern is valid, so changed bytes cannot break memory safety here.
    unsafe { Mmap::map(&file) }.map_err(io_error)
}

/// Takes the pages of `range` out of this process's memory, those that it shares with its neighbours too: they stay in
/// the system's cache, and come back when they are read. A range past the end is ignored, and so is a system that does
/// not want to.
pub(crate) fn forget(map: &Mmap, range: Range<usize>) {
    #[cfg(unix)]
    if map.get(range.clone()).is_some_and(|bytes| !bytes.is_empty()) {
        // SAFETY: the mapping is of a file and read-only, so no page of it was ever written, and what is read after
        // this call comes from the same file: no byte changes. The range lies inside of the mapping.
        let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len()) };
    }
}
