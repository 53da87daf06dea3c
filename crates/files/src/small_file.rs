//! Small files that are read whole: configurations, tokenizer files, indexes, journals.
//!
//! A folder may come from an archive or a clone, so that any name in it may be a link to a FIFO, a device or an endless
//! file. So only regular files are read, up to a limit that the caller sets. The size in the file's metadata is not
//! trusted, because files in `/proc` have none and a file may grow.

use std::fs::{File, OpenOptions};
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

/// The limit for a JSON configuration: `model_index.json`, `config.json`, `kiln.json`, `adapter_config.json`.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Opens a regular file, or a link to one, for reading. Never waits for another program.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a folder, FIFO, socket or device; else the operating system's error.
pub fn open_regular(path: &Path) -> Result<File> {
    refuse_special(&path.metadata()?)?; // before opening: opening some devices has effects
    let mut options = OpenOptions::new();
    options.read(true);
    // If the file is replaced by a FIFO in between, opening it must not wait for a writer. On a regular file the flag
    // has no effect, except for a few files in /proc (kmsg) whose reads would wait.
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK | libc::O_NOCTTY);
    let file = options.open(path)?;
    refuse_special(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file of at most `most` bytes.
///
/// # Errors
/// See [`open_regular`]; [`ErrorKind::FileTooLarge`] if the file has more than `most` bytes.
pub fn read_small(path: &Path, most: u64) -> Result<Vec<u8>> {
    let file = open_regular(path)?;
    let mut bytes = Vec::new();
    file.take(most.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let problem = format!("is larger than {}, the limit for this kind of file", in_units(most));
        return Err(Error::new(ErrorKind::FileTooLarge, problem));
    }
    Ok(bytes)
}

/// Reads a regular file of at most `most` bytes as UTF-8 text.
///
/// # Errors
/// See [`read_small`]; [`ErrorKind::InvalidData`] if the file is not UTF-8.
pub fn read_small_text(path: &Path, most: u64) -> Result<String> {
    String::from_utf8(read_small(path, most)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::new(ErrorKind::InvalidData, format!("is not UTF-8 text (byte {at})"))
    })
}

/// Fails for everything that is not a regular file.
fn refuse_special(metadata: &std::fs::Metadata) -> Result<()> {
    if metadata.is_file() {
        return Ok(());
    }
    let found = kind(metadata);
    Err(Error::new(ErrorKind::InvalidInput, format!("is {found}, expected a regular file")))
}

/// The name of a file's type.
fn kind(metadata: &std::fs::Metadata) -> &'static str {
    if metadata.is_dir() {
        return "a folder";
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        let file_type = metadata.file_type();
        if file_type.is_fifo() {
            return "a FIFO";
        } else if file_type.is_socket() {
            return "a socket";
        } else if file_type.is_char_device() || file_type.is_block_device() {
            return "a device";
        }
    }
    "a special file"
}

fn in_units(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_limit_is_read_and_one_byte_more_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        std::fs::write(&path, "12345678").unwrap();
        assert_eq!(read_small(&path, 8).unwrap(), b"12345678");
        assert_eq!(read_small_text(&path, 8).unwrap(), "12345678");
        let error = read_small(&path, 7).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "is larger than 7 bytes, the limit for this kind of file");
        std::fs::write(&path, b"ab\xff").unwrap();
        assert_eq!(read_small_text(&path, 8).unwrap_err().to_string(), "is not UTF-8 text (byte 2)");
        assert_eq!(read_small(&folder.path().join("none"), 8).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[cfg(unix)]
    #[test]
    fn special_files_are_refused_without_reading() {
        let folder = tempfile::tempdir().unwrap();
        let fifo = folder.path().join("fifo");
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let socket = folder.path().join("socket");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let zero = folder.path().join("zero");
        std::os::unix::fs::symlink("/dev/zero", &zero).unwrap();
        for (path, what) in
            [(&fifo, "a FIFO"), (&socket, "a socket"), (&zero, "a device"), (&folder.path().into(), "a folder")]
        {
            let message = read_small(path, 100).unwrap_err().to_string();
            assert_eq!(message, format!("is {what}, expected a regular file"));
        }
    }

    /// The metadata of some files in `/proc` have the size 0.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_size_in_the_metadata_is_not_the_limit() {
        let error = read_small(Path::new("/proc/self/smaps"), 100).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn limits_are_shown_in_units() {
        assert_eq!(in_units(MAX_CONFIG_BYTES), "1 MiB");
        assert_eq!(in_units(64 << 10), "64 KiB");
    }
}
