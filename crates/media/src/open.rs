//! Reading a limited number of bytes of a file or stream.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::{DecodeOptions, DecodedImage, Error, Result, decode};

/// Reads and decodes an image file. The content determines its format.
///
/// # Errors
/// See [`read_file`] and [`decode`].
pub fn open(path: &Path, options: &DecodeOptions) -> Result<DecodedImage> {
    decode(&read_file(path, options)?, &path.display().to_string(), options)
}

/// All bytes of an image file, for [`decode`].
///
/// # Errors
/// [`Error::Read`] if it is no regular file (a FIFO would wait for a writer) or cannot be read, [`Error::TooLarge`] if it
/// has more bytes than [`DecodeOptions::max_file`].
pub fn read_file(path: &Path, options: &DecodeOptions) -> Result<Vec<u8>> {
    let name = path.display().to_string();
    let failed = |error: std::io::Error| Error::Read { name: name.clone(), problem: error.to_string() };
    let metadata = path.metadata().map_err(failed)?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "a folder" } else { "a device, a FIFO or a socket" };
        return Err(Error::Read { name, problem: format!("is {what}, expected an image file") });
    }
    if metadata.len() > options.max_file {
        let (found, limit) = (format!("has {} bytes", metadata.len()), format!("{} bytes", options.max_file));
        return Err(Error::TooLarge { name, found, limit });
    }
    let file = File::open(path).map_err(failed)?;
    read_all(file, &name, options)
}

/// All bytes of a stream such as standard input, for [`decode`].
///
/// # Errors
/// [`Error::Read`] if reading fails, [`Error::TooLarge`] if there are more bytes than [`DecodeOptions::max_file`].
pub fn read_all(stream: impl Read, name: &str, options: &DecodeOptions) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    let read = stream.take(options.max_file.saturating_add(1)).read_to_end(&mut data);
    read.map_err(|error| Error::Read { name: name.into(), problem: error.to_string() })?;
    if data.len() as u64 > options.max_file {
        let limit = format!("{} bytes", options.max_file);
        return Err(Error::TooLarge { name: name.into(), found: "has more bytes than that".into(), limit });
    }
    Ok(data)
}
