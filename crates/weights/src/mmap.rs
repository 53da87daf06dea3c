//! A file mapped into memory.
#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::error::{Error, Result};

/// Maps a file for reading. An empty file maps to an empty slice.
pub(crate) fn map(path: &Path) -> Result<Mmap> {
    let io_error = |source| Error::Io { path: path.to_path_buf(), source };
    let file = File::open(path).map_err(io_error)?;
    if file.metadata().map_err(io_error)?.is_dir() {
        let problem = "is a folder, expected a .safetensors file".into();
        return Err(Error::Format { path: path.to_path_buf(), problem });
    }
    // SAFETY: the mapping is read-only and private to this process's view of the file. What the type system cannot
    // rule out is another process that shortens or rewrites the file while it is mapped: then reads see other bytes or
    // the system ends the process. Every engine that maps checkpoints lives with that; bytes are only ever read as
    // plain numbers whose every bit pattern is valid, so changed bytes cannot break memory safety here.
    unsafe { Mmap::map(&file) }.map_err(io_error)
}
