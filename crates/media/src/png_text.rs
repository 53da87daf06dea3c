//! The text chunks of a PNG, at any position in the file.
//!
//! Chunks are skipped by their lengths and pixels are never inflated, so that a large or hostile image costs nothing,
//! and texts after the pixels are found as well. PNG specification, third edition, sections 5.3 and 11.3.3.

use std::io::{Read, Seek, SeekFrom};

use flate2::read::ZlibDecoder;

use crate::text::ImageText;

/// The first bytes of every PNG.
pub(crate) const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";
/// The maximum bytes of a text. ComfyUI's largest workflows have a few million.
pub(crate) const MAX_TEXT: usize = 16 << 20;
/// The maximum bytes of all texts, read or inflated.
const MAX_TEXTS: usize = 64 << 20;
/// The maximum number of texts; no program writes more.
const MAX_COUNT: usize = 1000;
/// The maximum number of chunks. A large image has some ten thousand chunks of pixels.
const MAX_CHUNKS: usize = 1_000_000;

/// The contents of a PNG.
pub(crate) struct PngTexts {
    /// Width and height.
    pub(crate) size: Option<(u32, u32)>,
    pub(crate) texts: Vec<ImageText>,
}

/// Reads the chunks after the signature. It stops at invalid data, such as the end of a truncated file, and returns the
/// results up to there.
///
/// # Errors
/// Errors of the system.
pub(crate) fn read(file: &mut (impl Read + Seek)) -> std::io::Result<PngTexts> {
    let (mut size, mut texts, mut total) = (None, Vec::new(), 0usize);
    for _ in 0..MAX_CHUNKS {
        let mut head = [0; 8];
        if !fill(file, &mut head)? {
            break;
        }
        let [a, b, c, d, kind @ ..] = head;
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let wanted = match &kind {
            b"IEND" => break,
            b"IHDR" => length == 13,
            b"tEXt" | b"zTXt" | b"iTXt" => length <= MAX_TEXT && total.saturating_add(length) <= MAX_TEXTS,
            _ => false,
        };
        if !wanted {
            file.seek(SeekFrom::Current(length as i64 + 4))?; // and the checksum
            continue;
        }
        // Limited by the file: a false length allocates nothing.
        let mut data = Vec::new();
        file.by_ref().take(length as u64).read_to_end(&mut data)?;
        let mut checksum = [0; 4];
        if data.len() != length || !fill(file, &mut checksum)? {
            break;
        }
        let mut crc = flate2::Crc::new();
        crc.update(&kind);
        crc.update(&data);
        if crc.sum() != u32::from_be_bytes(checksum) {
            tracing::warn!("a {} chunk is damaged and left out", String::from_utf8_lossy(&kind));
            continue;
        }
        if &kind == b"IHDR" {
            let side = |at: usize| data.get(at..at + 4).and_then(|side| side.try_into().ok()).map(u32::from_be_bytes);
            size = side(0).zip(side(4));
        } else {
            let (text, cost) = text(&kind, &data);
            // Rejected data counts as well.
            total = total.saturating_add(cost);
            texts.extend(text);
        }
        if total > MAX_TEXTS || texts.len() >= MAX_COUNT {
            break;
        }
    }
    Ok(PngTexts { size, texts })
}

/// Fills a buffer; `false` if the file ends before.
fn fill(file: &mut impl Read, buffer: &mut [u8]) -> std::io::Result<bool> {
    match file.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// The keyword and the text of a chunk, and the number of bytes that were read or inflated for it.
fn text(kind: &[u8; 4], data: &[u8]) -> (Option<ImageText>, usize) {
    let mut cost = data.len();
    let mut inflated = |data: &[u8]| {
        let (text, is_whole) = inflate(data);
        cost += text.len();
        (is_whole && text.len() <= MAX_TEXT).then_some(text)
    };
    let mut read = || {
        let (key, rest) = split(data)?;
        let text = match kind {
            b"tEXt" => from_latin1(rest),
            b"zTXt" => from_latin1(&inflated(rest.strip_prefix(&[0])?)?),
            _ => {
                let [compressed, method, rest @ ..] = rest else { return None };
                let (_language, rest) = split(rest)?;
                let (_translated, rest) = split(rest)?;
                match (compressed, method) {
                    (0, _) => String::from_utf8_lossy(rest).into_owned(),
                    (1, 0) => String::from_utf8_lossy(&inflated(rest)?).into_owned(),
                    _ => return None,
                }
            }
        };
        let place = String::from_utf8_lossy(kind).into_owned();
        Some(ImageText { place, key: from_latin1(key), text })
    };
    (read(), cost)
}

/// The bytes before and after the first zero.
fn split(data: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = data.iter().position(|&byte| byte == 0)?;
    Some((&data[..end], &data[end + 1..]))
}

/// The text of a compressed chunk, up to one byte more than the limit or up to damaged data, and whether it is
/// undamaged.
fn inflate(data: &[u8]) -> (Vec<u8>, bool) {
    let mut text = Vec::new();
    let read = ZlibDecoder::new(data).take(MAX_TEXT as u64 + 1).read_to_end(&mut text);
    (text, read.is_ok())
}

/// Latin-1, as specified. Many programs write UTF-8 instead, and Latin-1 text is rarely valid UTF-8 by chance.
fn from_latin1(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => bytes.iter().map(|&byte| char::from(byte)).collect(),
    }
}

/// Whether a tEXt chunk preserves a text: it is Latin-1, and its bytes are not valid UTF-8 by chance.
pub(crate) fn is_latin1(text: &str) -> bool {
    let bytes: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    text.is_ascii() || bytes.is_some_and(|bytes| std::str::from_utf8(&bytes).is_err())
}

#[cfg(test)]
mod tests {
    use std::io::{Cursor, Write};

    use super::*;

    fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
        let mut crc = flate2::Crc::new();
        crc.update(kind);
        crc.update(data);
        [&(data.len() as u32).to_be_bytes()[..], kind, data, &crc.sum().to_be_bytes()].concat()
    }

    fn zlib(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn texts(chunks: &[Vec<u8>]) -> Vec<(String, String)> {
        let PngTexts { texts, .. } = read(&mut Cursor::new(chunks.concat())).unwrap();
        texts.into_iter().map(|text| (text.key, text.text)).collect()
    }

    fn pair(key: &str, text: &str) -> (String, String) {
        (key.into(), text.into())
    }

    #[test]
    fn every_kind_of_text_is_read_before_and_after_the_pixels() {
        let header = chunk(b"IHDR", &[0, 0, 2, 0, 0, 0, 1, 0, 8, 2, 0, 0, 0]);
        let all = [
            header,
            chunk(b"tEXt", b"a\0one \xe4"),
            chunk(b"IDAT", b"not even zlib"),
            chunk(b"zTXt", &[b"b\0\0".as_slice(), &zlib(b"two")].concat()),
            chunk(b"iTXt", "c\0\0\0de\0\0drei ぼ".as_bytes()),
            chunk(b"iTXt", &[b"d\0\x01\0\0\0".as_slice(), &zlib("vier 🍎".as_bytes())].concat()),
            chunk(b"IEND", b""),
            chunk(b"tEXt", b"e\0behind the end"),
        ];
        let PngTexts { size, texts: found } = read(&mut Cursor::new(all.concat())).unwrap();
        assert_eq!(size, Some((512, 256)));
        assert_eq!(found[0].place, "tEXt");
        let expected = [pair("a", "one ä"), pair("b", "two"), pair("c", "drei ぼ"), pair("d", "vier 🍎")];
        assert_eq!(texts(&all), expected);
        let whole = all.concat();
        for end in 0..whole.len() {
            read(&mut Cursor::new(&whole[..end])).unwrap(); // truncated at any byte
        }
    }

    #[test]
    fn hostile_chunks_cost_nothing() {
        let bomb = zlib(&vec![b'x'; MAX_TEXT + 1]);
        let mut damaged = chunk(b"tEXt", b"a\0damaged");
        *damaged.last_mut().unwrap() ^= 1;
        let good = chunk(b"tEXt", b"k\0v");
        let chunks = [
            chunk(b"zTXt", &[b"bomb\0\0".as_slice(), &bomb].concat()),
            damaged,
            chunk(b"tEXt", b"no zero"),
            chunk(b"zTXt", b"a\0\x07unknown method"),
            chunk(b"iTXt", b"a\0\x01"),
            good,
            [&u32::MAX.to_be_bytes()[..], b"tEXt", b"a\0lies"].concat(),
        ];
        assert_eq!(texts(&chunks), [pair("k", "v")]);
    }

    #[test]
    fn texts_and_inflated_bytes_are_limited() {
        let many: Vec<Vec<u8>> = (0..MAX_COUNT + 50).map(|_| chunk(b"tEXt", b"Comment\0{}")).collect();
        assert_eq!(texts(&many).len(), MAX_COUNT);
        // Each is rejected for its length, and after a few no more are inflated: a text after them is not reached.
        let bomb = chunk(b"zTXt", &[b"bomb\0\0".as_slice(), &zlib(&vec![b'x'; MAX_TEXT + 1])].concat());
        let good = chunk(b"tEXt", b"k\0v");
        let few = MAX_TEXTS / MAX_TEXT;
        assert_eq!(texts(&[vec![bomb.clone(); few - 1], vec![good.clone()]].concat()), [pair("k", "v")]);
        assert_eq!(texts(&[vec![bomb; few + 1], vec![good.clone()]].concat()), []);
        // The same if they end in invalid zlib data.
        let mut damaged = zlib(&vec![b'x'; MAX_TEXT - 1]);
        damaged.truncate(damaged.len() - 4);
        let damaged = chunk(b"zTXt", &[b"bomb\0\0".as_slice(), &damaged].concat());
        assert_eq!(texts(&[vec![damaged; few + 1], vec![good]].concat()), []);
    }

    #[test]
    fn what_comes_back_from_latin1_is_told() {
        for (text, is_it) in [("plain", true), ("20 °C", true), ("Ã¼", false), ("ぼ", false), ("", true)] {
            assert_eq!(is_latin1(text), is_it, "{text}");
        }
    }
}
