//! A file that the program contains, and the check of a copy.

use std::fs::File;
use std::io::{Read, Result};
use std::path::Path;

/// The bytes that are read from a copy at once.
const BUFFER: usize = 1 << 18;

/// A file of the model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ModelFile {
    /// The path in the folder of the model, with slashes.
    pub(crate) name: &'static str,
    /// The content.
    pub(crate) bytes: &'static [u8],
    /// The CRC-32 of large files. With it the check of a copy does not read the program's own bytes, which would be in memory then.
    pub(crate) crc: Option<u32>,
}

impl ModelFile {
    /// Whether `path` is a complete copy of this file.
    pub(crate) fn is_copied(&self, path: &Path) -> bool {
        let is_whole = path.metadata().is_ok_and(|found| found.is_file() && found.len() == self.bytes.len() as u64);
        is_whole
            && match self.crc {
                Some(crc) => crc_of(path).is_ok_and(|found| found == crc),
                None => std::fs::read(path).is_ok_and(|found| found == self.bytes),
            }
    }
}

/// The CRC-32 of a file.
fn crc_of(path: &Path) -> Result<u32> {
    let (mut file, mut crc, mut buffer) = (File::open(path)?, crc32fast::Hasher::new(), vec![0; BUFFER]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(crc.finalize()),
            count => crc.update(&buffer[..count]),
        }
    }
}
