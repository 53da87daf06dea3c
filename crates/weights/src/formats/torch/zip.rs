//! The directory of a zip archive with uncompressed entries, as PyTorch writes them.
//!
//! This code replaces the `zip` crate because it needs the byte ranges of the entries in the mapped file, so that
//! tensors are read without a copy, and no decompression. A compressed entry is an error, so no archive is larger
//! inside than outside.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::formats::bytes::Reader;

type Parsed<T> = Result<T, String>;

/// The magic number of an archive.
pub(crate) const MAGIC: &[u8] = b"PK\x03\x04";
const END: &[u8] = b"PK\x05\x06";
const END_64_LOCATOR: &[u8] = b"PK\x06\x07";
const END_64: &[u8] = b"PK\x06\x06";
const CENTRAL: &[u8] = b"PK\x01\x02";
/// The length of the end record without its comment, which has at most 65,535 bytes.
const END_LENGTH: usize = 22;
const MAX_COMMENT: usize = 65_535;
/// The value in a field of the 32-bit records that refers to the 64-bit record.
const IN_64: u64 = 0xffff_ffff;
/// The id of the 64-bit record among an entry's extra fields.
const EXTRA_64: u16 = 1;

/// More entries than any checkpoint has.
const MAX_ENTRIES: u64 = 1 << 17;

/// The names and byte ranges of the entries.
pub(super) fn entries(bytes: &[u8]) -> Parsed<BTreeMap<String, Range<usize>>> {
    let (start, count) = directory(bytes)?;
    if count > MAX_ENTRIES {
        return Err(format!("is a zip archive that claims {count} entries, expected at most {MAX_ENTRIES}"));
    }
    let mut reader = Reader::new(bytes);
    reader.seek(start)?;
    let mut entries = BTreeMap::new();
    for _ in 0..count {
        let (name, range) = entry(bytes, &mut reader)?;
        if let Some(range) = range
            && entries.insert(name.clone(), range).is_some()
        {
            return Err(format!("has the entry `{name}` twice, which is ambiguous"));
        }
    }
    Ok(entries)
}

/// The start of the central directory, and its number of entries.
fn directory(bytes: &[u8]) -> Parsed<(u64, u64)> {
    let cut_off = || "is a zip archive without its end record; it is cut off, download it again".to_string();
    let tail = bytes.len().saturating_sub(END_LENGTH + MAX_COMMENT);
    let end = bytes[tail..].windows(END.len()).rposition(|window| window == END).ok_or_else(cut_off)? + tail;
    let mut reader = Reader::new(bytes);
    reader.seek(end as u64 + 10)?;
    let (count, _size, start) = (u64::from(reader.u16()?), reader.u32()?, u64::from(reader.u32()?));
    let locator = end.checked_sub(20).and_then(|at| Some((at, bytes.get(at..at + 4)?)));
    if let Some((at, END_64_LOCATOR)) = locator {
        reader.seek(at as u64 + 8)?;
        let record = reader.u64()?;
        reader.seek(record)?;
        if reader.take(4)? != END_64 {
            return Err(cut_off());
        }
        reader.seek(record.saturating_add(32))?;
        let (count, _size, start) = (reader.u64()?, reader.u64()?, reader.u64()?);
        return Ok((start, count));
    }
    Ok((start, count))
}

/// One row of the central directory; folders have no range.
fn entry(bytes: &[u8], reader: &mut Reader<'_>) -> Parsed<(String, Option<Range<usize>>)> {
    if reader.take(4)? != CENTRAL {
        return Err("is a zip archive with a damaged table; download it again".into());
    }
    reader.take(4)?; // versions
    let (flags, method) = (reader.u16()?, reader.u16()?);
    reader.take(8)?; // time, date, checksum
    let (mut packed, mut size) = (u64::from(reader.u32()?), u64::from(reader.u32()?));
    let (name, extra, comment) = (reader.u16()?, reader.u16()?, reader.u16()?);
    reader.take(8)?; // disk, attributes
    let mut at = u64::from(reader.u32()?);
    let name = String::from_utf8_lossy(reader.take(name.into())?).into_owned();
    let mut extras = Reader::new(reader.take(extra.into())?);
    reader.take(comment.into())?;
    while extras.left() >= 4 {
        let (kind, length) = (extras.u16()?, extras.u16()?);
        let mut field = Reader::new(extras.take(length.into())?);
        if kind == EXTRA_64 {
            for value in [&mut size, &mut packed, &mut at].into_iter().filter(|value| **value == IN_64) {
                *value = field.u64()?;
            }
        }
    }
    if name.ends_with('/') {
        return Ok((name, None));
    }
    if flags & 1 != 0 {
        return Err(format!("is encrypted (entry `{name}`)"));
    }
    if method != 0 || packed != size {
        return Err(format!(
            "is a zip archive with the compressed entry `{name}`, {size} bytes from {packed}; PyTorch stores entries as \
             they are: unpack it, or save it again with torch.save"
        ));
    }
    // The entry's own header repeats the name, and may have other extra fields.
    let mut header = Reader::new(bytes);
    header.seek(at)?;
    if header.take(4)? != MAGIC {
        return Err(format!("is a zip archive whose entry `{name}` is not where its table says"));
    }
    header.take(22)?;
    let (name_length, extra) = (header.u16()?, header.u16()?);
    header.take(usize::from(name_length) + usize::from(extra))?;
    let start = header.position();
    header.take_u64(size)?;
    Ok((name, Some(start..header.position())))
}
