//! Statistics of a set in numpy's format: an `.npz` archive with `mu` and `sigma`, as pytorch-fid's `--save-stats` writes it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::CrcReader;
use flate2::read::DeflateDecoder;
use kiln_files::{open_regular, read_error};
use zip::{CompressionMethod, ZipArchive};

use super::statistics::Statistics;
use crate::error::{Error, Result};

/// The most features, twice those of Inception: a covariance of 128 MiB.
const MOST: usize = 4096;
/// The first bytes of an array.
const MAGIC: &[u8] = b"\x93NUMPY";
/// The longest description of an array: numpy's have about 120 bytes.
const LONGEST: usize = 4096;

/// The description of an array. The order of a covariance's values is of no interest, since it is symmetric.
#[derive(Debug, PartialEq)]
struct Header {
    is_f64: bool,
    shape: Vec<usize>,
}

impl Statistics {
    /// Reads `mu` and `sigma` of an `.npz` archive, in f32 or f64, compressed or not.
    ///
    /// # Errors
    /// [`Error::Files`] if the file cannot be read, [`Error::Network`] for other arrays and damaged ones.
    pub fn read(path: &Path) -> Result<Self> {
        let file = open_regular(path).map_err(read_error(path))?;
        let refused = |problem: String| Error::Network { path: PathBuf::from(path), problem };
        let mut archive = ZipArchive::new(file).map_err(|error| {
            refused(format!("is no .npz archive, expected `mu` and `sigma` by numpy.savez: {error}"))
        })?;
        let mean = array(&mut archive, "mu", 1).map_err(refused)?;
        let covariance = array(&mut archive, "sigma", 2).map_err(refused)?;
        Self::new(mean, covariance).map_err(|problem| refused(format!("`mu` and `sigma` are no statistics: {problem}")))
    }
}

/// The values of an array with so many dimensions. A problem is a clause.
fn array(archive: &mut ZipArchive<File>, name: &str, dimensions: usize) -> Result<Vec<f64>, String> {
    let index = archive.index_for_name(&format!("{name}.npy"));
    let index = index.ok_or_else(|| format!("has no array `{name}`, expected `mu` and `sigma` of pytorch-fid"))?;
    let entry = archive.by_index_raw(index).map_err(|error| format!("`{name}` cannot be read: {error}"))?;
    let sum = entry.crc32();
    // `zip` reads the entry as it is stored: with its feature for compressed ones candle would be built once more.
    let reader: Box<dyn Read + '_> = match entry.compression() {
        CompressionMethod::Stored => Box::new(entry),
        CompressionMethod::DEFLATE => Box::new(DeflateDecoder::new(entry)),
        other => return Err(format!("`{name}` is compressed by a method that Kiln does not know: {other}")),
    };
    let mut reader = CrcReader::new(reader);
    let values = values(&mut reader, dimensions).map_err(|problem| format!("`{name}` {problem}"))?;
    match reader.crc().sum() == sum {
        true => Ok(values),
        false => Err(format!("`{name}` is damaged: its checksum is another one")),
    }
}

/// Reads an array to its end.
fn values(reader: &mut impl Read, dimensions: usize) -> Result<Vec<f64>, String> {
    let cut = |error: std::io::Error| format!("is damaged or truncated: {error}");
    let mut first = [0; 8];
    reader.read_exact(&mut first).map_err(cut)?;
    // Two bytes of a length in version 1, four in the later ones.
    let mut length = [0; 4];
    let digits = if first[6] == 1 { 2 } else { 4 };
    reader.read_exact(&mut length[..digits]).map_err(cut)?;
    let length = u32::from_le_bytes(length) as usize;
    if !first.starts_with(MAGIC) || length > LONGEST {
        return Err("is no array of numpy".into());
    }
    let mut text = vec![0; length];
    reader.read_exact(&mut text).map_err(cut)?;
    let Header { is_f64, shape } = Header::of(&String::from_utf8_lossy(&text))?;
    if shape.len() != dimensions || shape.iter().any(|size| !(1..=MOST).contains(size)) {
        return Err(format!("has the shape {shape:?}, expected {dimensions} dimensions of 1 to {MOST}"));
    }
    let width = if is_f64 { size_of::<f64>() } else { size_of::<f32>() };
    let bytes = shape.iter().product::<usize>() * width;
    let mut data = Vec::new();
    reader.take(bytes as u64 + 1).read_to_end(&mut data).map_err(cut)?;
    if data.len() != bytes {
        let found = if data.len() > bytes { "more" } else { "fewer" };
        return Err(format!("has {found} values than its shape {shape:?} says"));
    }
    let value = |bytes: &[u8]| match *bytes {
        [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
        [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
        _ => f64::NAN, // chunks are of one of both sizes
    };
    Ok(data.chunks_exact(width).map(value).collect())
}

impl Header {
    /// Reads the text of a Python dictionary: `{'descr': '<f8', 'fortran_order': False, 'shape': (2048, 2048), }`.
    fn of(text: &str) -> Result<Self, String> {
        let unknown =
            || format!("has a description that is not numpy's: {:?}", text.chars().take(200).collect::<String>());
        let after = |key: &str| text.split_once(&format!("'{key}':")).map(|(_, rest)| rest.trim_start());
        let quoted = after("descr").and_then(|rest| rest.strip_prefix('\'')?.split_once('\'')).map(|(kind, _)| kind);
        let is_f64 = match quoted.ok_or_else(unknown)? {
            "<f8" => true,
            "<f4" => false,
            other => return Err(format!("has values of type {other:?}, expected f32 or f64 ('<f4' or '<f8')")),
        };
        let inner = after("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')')).map(|(inner, _)| inner);
        let sizes = inner.ok_or_else(unknown)?.split(',').map(str::trim).filter(|size| !size.is_empty());
        let shape = sizes.map(|size| size.parse().map_err(|_| unknown())).collect::<Result<_, _>>()?;
        Ok(Self { is_f64, shape })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_those_of_numpy() {
        let header = Header::of("{'descr': '<f8', 'fortran_order': False, 'shape': (2048, 2048), }   \n").unwrap();
        assert_eq!(header, Header { is_f64: true, shape: vec![2048, 2048] });
        assert_eq!(Header::of("{'descr': '<f4', 'shape': (3,), }").unwrap(), Header { is_f64: false, shape: vec![3] });
        assert_eq!(Header::of("{'descr': '<f4', 'shape': ()}").unwrap().shape, [0; 0]);
        for (text, expected) in [
            ("{'descr': '<i8', 'shape': (3,)}", "has values of type \"<i8\", expected f32 or f64"),
            ("{'descr': [('a', '<f8')], 'shape': (3,)}", "is not numpy's"),
            ("{'descr': '<f8', 'shape': (-3,)}", "is not numpy's"),
            ("", "is not numpy's"),
        ] {
            assert!(Header::of(text).unwrap_err().contains(expected), "{text}");
        }
    }

    #[test]
    fn hostile_arrays_take_no_memory() {
        let of = |shape: &str, values: &[u8]| {
            let text = format!("{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}");
            let length = u16::try_from(text.len()).unwrap().to_le_bytes();
            let bytes = [MAGIC, &[1, 0], &length, text.as_bytes(), values].concat();
            super::values(&mut bytes.as_slice(), 1)
        };
        assert_eq!(of("(1,)", &2.5f64.to_le_bytes()).unwrap(), [2.5]);
        for (shape, values, expected) in [
            ("(4096,)", &[0; 8][..], "fewer values than its shape [4096]"),
            ("(1,)", &[0; 9], "more values than its shape [1]"),
            ("(99999999999,)", &[], "expected 1 dimensions of 1 to 4096"),
            ("(99999999999999999999,)", &[], "is not numpy's"),
            ("(0,)", &[], "expected 1 dimensions"),
            ("(2, 2)", &[0; 32], "has the shape [2, 2]"),
        ] {
            let problem = of(shape, values).unwrap_err();
            assert!(problem.contains(expected), "{shape}: {problem}");
        }
        let message = |bytes: &[u8]| super::values(&mut &*bytes, 1).unwrap_err();
        assert!(message(b"\x93NUM").contains("truncated"));
        assert_eq!(message(b"\x93NUMPY\x02\x00\xff\xff\xff\xff"), "is no array of numpy");
        assert_eq!(message(b"PK\x03\x04....\x00\x00\x00\x00"), "is no array of numpy");
    }
}
