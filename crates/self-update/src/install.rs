//! Replaces a program by one from an archive.

use std::fs::File;
use std::io::{Read, copy};
use std::path::Path;
use std::process::{Command, Stdio};

use flate2::read::DeflateDecoder;
use kiln_files::{Result, temporary_beside, write_error};
use semver::Version;
use tempfile::TempPath;
use zip::{CompressionMethod, ZipArchive};

/// The most bytes of an unpacked program.
const MOST: u64 = 4 << 30;

/// Unpacks the entry `name` into a file next to `program`, with the program's permissions.
///
/// # Errors
/// A sentence.
pub(crate) fn unpack(archive: &File, name: &str, program: &Path) -> std::result::Result<TempPath, String> {
    let mut archive = ZipArchive::new(archive).map_err(|error| format!("is no zip archive: {error}"))?;
    let index = archive.index_for_name(name).ok_or_else(|| format!("has no {name}"))?;
    let entry = archive.by_index_raw(index).map_err(|error| format!("{name} cannot be read: {error}"))?;
    let mut new = temporary_beside(program).map_err(|error| error.to_string())?;
    let expected = entry.size();
    // `zip` reads the entry as it is stored: with its feature for compressed ones candle would be built once more.
    let mut reader: Box<dyn Read + '_> = match entry.compression() {
        CompressionMethod::Stored => Box::new(entry.take(MOST)),
        CompressionMethod::DEFLATE => Box::new(DeflateDecoder::new(entry).take(MOST)),
        other => return Err(format!("{name} is compressed by a method that is not known: {other}")),
    };
    let written = copy(&mut reader, &mut new).map_err(|error| format!("{name} cannot be unpacked: {error}"))?;
    if written != expected {
        return Err(format!("{name} has {written} bytes instead of {expected}"));
    }
    let permissions = program.metadata().map_err(|error| error.to_string())?.permissions();
    new.as_file().set_permissions(permissions).map_err(|error| error.to_string())?;
    new.as_file().sync_all().map_err(|error| error.to_string())?;
    // Closed: a file that is open for writing cannot be started.
    Ok(new.into_temp_path())
}

/// Fails unless the program starts on this machine and has this version.
///
/// # Errors
/// A sentence.
pub(crate) fn check_start(program: &Path, version: &Version) -> std::result::Result<(), String> {
    let output = Command::new(program).arg("-V").stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("its program does not start here: {error}"))?;
    let said = String::from_utf8_lossy(&output.stdout);
    match output.status.success() && said.trim() == format!("kiln {version}") {
        true => Ok(()),
        false => {
            let message = String::from_utf8_lossy(&output.stderr);
            let line = message.lines().chain(said.lines()).next().unwrap_or("nothing").to_string();
            Err(format!("its program does not run here: it says {line:?} ({})", output.status))
        }
    }
}

/// Replaces the old program by the new one. A running program keeps its file: on Unix without a name, on Windows under
/// another one, which the next update deletes.
///
/// # Errors
/// [`kiln_files::Error::Write`].
pub(crate) fn replace(new: TempPath, program: &Path) -> Result<()> {
    if !cfg!(windows) {
        return new.persist(program).map_err(|error| write_error(program)(error.error));
    }
    let old = program.with_extension("old.exe");
    let _ = std::fs::remove_file(&old); // of the last update
    std::fs::rename(program, &old).map_err(write_error(program))?;
    new.persist(program).map_err(|error| {
        let _ = std::fs::rename(&old, program);
        write_error(program)(error.error)
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    /// An archive with `a/kiln`, deflated, from Python's `zipfile`.
    const ARCHIVE: &str = "\
        504b0304140000000800000021009ddc94bc0b0000001e00000006000000612f6b696c6ecbceccc953c8c641700100504b01\
        021403140000000800000021009ddc94bc0b0000001e000000060000000000000000000000800100000000612f6b696c6e50\
        4b05060000000001000100340000002f0000000000\
        ";

    #[test]
    fn a_deflated_entry_is_unpacked_with_the_permissions_of_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("kiln");
        std::fs::write(&program, "old").unwrap();
        let digits: Vec<char> = ARCHIVE.chars().collect();
        let byte = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&digits.chunks(2).map(byte).collect::<Vec<_>>()).unwrap();
        let new = unpack(&file, "a/kiln", &program).unwrap();
        assert_eq!(std::fs::read_to_string(&new).unwrap(), "kiln kiln kiln kiln kiln kiln\n");
        let mode = |path: &Path| path.metadata().unwrap().permissions();
        assert_eq!(mode(&new), mode(&program));
        replace(new, &program).unwrap();
        assert_eq!(std::fs::read_to_string(&program).unwrap().len(), 30);
        assert_eq!(unpack(&file, "b/kiln", &program).unwrap_err(), "has no b/kiln");
    }
}
