//! The digests of model files that other programs write to image metadata.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use kiln_files::{Sha256, sha256 as sha256_of};
use serde::{Deserialize, Serialize};

/// The part of a file to hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// The whole file, for models.
    Whole,
    /// The bytes after the header of a safetensors file, so that notes do not change the hash: AUTOMATIC1111's hash of
    /// LoRAs.
    PastHeader,
}

/// Bytes of one read.
const BLOCK: usize = 1 << 20;

/// The SHA-256 of the concatenated `files`, in hexadecimal digits.
///
/// # Errors
/// The system's error on a file.
pub(super) fn sha256(files: &[PathBuf], scope: Scope) -> std::io::Result<String> {
    let mut hasher = Sha256::default();
    let mut block = vec![0; BLOCK];
    for path in files {
        let mut file = File::open(path)?;
        if scope == Scope::PastHeader {
            skip_header(&mut file)?;
        }
        loop {
            match file.read(&mut block)? {
                0 => break,
                count => hasher.update(&block[..count]),
            }
        }
    }
    Ok(hasher.finish())
}

/// Seeks past a safetensors header: 8 bytes with its length, then the header. A file without one is hashed whole.
fn skip_header(file: &mut File) -> std::io::Result<()> {
    let mut length = [0; 8];
    let has_length = file.read_exact(&mut length).is_ok();
    let start = u64::from_le_bytes(length).checked_add(8);
    let start = start.filter(|&start| has_length && file.metadata().is_ok_and(|file| start <= file.len()));
    file.seek(SeekFrom::Start(start.unwrap_or(0))).map(drop)
}

/// AUTOMATIC1111's first hash of models, before 2023: 8 digits of the SHA-256 of 64 KiB at offset 1 MiB.
pub fn old_hash(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(0x10_0000))?;
    let mut bytes = Vec::new();
    file.take(0x1_0000).read_to_end(&mut bytes)?;
    Ok(sha256_of(&bytes)[..8].to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    /// FIPS 180-2, appendix B.1.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn known_digests() {
        let (_folder, path) = file(b"abc");
        assert_eq!(sha256(std::slice::from_ref(&path), Scope::Whole).unwrap(), ABC);
        assert_eq!(sha256(&[path], Scope::PastHeader).unwrap(), ABC, "too short for a header");
        let (_folder, path) = file(b"\x02\0\0\0\0\0\0\0{}abc");
        assert_eq!(sha256(std::slice::from_ref(&path), Scope::PastHeader).unwrap(), ABC);
        assert_ne!(sha256(&[path], Scope::Whole).unwrap(), ABC);
        let parts: Vec<_> = [b"a".as_slice(), b"bc"].map(file).into_iter().collect();
        let paths: Vec<_> = parts.iter().map(|(_, path)| path.clone()).collect();
        assert_eq!(sha256(&paths, Scope::Whole).unwrap(), ABC);
        assert!(sha256(&["/nowhere".into()], Scope::Whole).is_err());
    }

    #[test]
    fn the_old_hash_starts_at_one_mebibyte() {
        let (_folder, path) = file(&[&[7; 0x10_0000][..], b"abc"].concat());
        assert_eq!(old_hash(&path).unwrap(), &ABC[..8]);
        let (_folder, path) = file(b"short");
        assert_eq!(old_hash(&path).unwrap(), "e3b0c442"); // the hash of no bytes, as in AUTOMATIC1111
    }
}
