//! Settings in the Exif data of JPEG, WebP and AVIF: `UserComment`, as AUTOMATIC1111 writes it.

use std::io::{BufRead, Cursor, Seek};

use exif::experimental::Writer;
use exif::{Field, In, Reader, Tag, Value};

use crate::text::ImageText;

/// The fields that contain texts: `UserComment` of AUTOMATIC1111 and others, the other fields of ComfyUI's savers.
const TAGS: [(Tag, &str); 5] = [
    (Tag::UserComment, "UserComment"),
    (Tag::ImageDescription, "ImageDescription"),
    (Tag::Make, "Make"),
    (Tag::Model, "Model"),
    (Tag::Software, "Software"),
];

/// The texts in the Exif data, if there is any. Damaged fields are skipped.
pub(crate) fn read(file: &mut (impl BufRead + Seek)) -> Vec<ImageText> {
    let mut reader = Reader::new();
    reader.continue_on_error(true);
    let found = match reader.read_from_container(file) {
        Ok(exif) => exif,
        Err(error) => match error.distill_partial_result(|_| {}) {
            Ok(exif) => exif,
            Err(_) => return Vec::new(), // no Exif data
        },
    };
    let text = |&(tag, key): &(Tag, &str)| {
        let text = match &found.get_field(tag, In::PRIMARY)?.value {
            Value::Undefined(bytes, _) => comment(bytes),
            Value::Ascii(lines) => {
                let lines: Vec<_> = lines.iter().map(|line| String::from_utf8_lossy(line)).collect();
                lines.join("\n")
            }
            Value::Byte(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => return None,
        };
        Some(named(key, text))
    };
    TAGS.iter().filter_map(text).filter(|text| !text.text.is_empty()).collect()
}

/// Exif data with a text in `UserComment`, in UTF-16 with the high byte first, as AUTOMATIC1111 writes it.
///
/// # Errors
/// Errors of the writer.
pub(crate) fn user_comment(text: &str) -> Result<Vec<u8>, exif::Error> {
    let utf16 = text.encode_utf16().flat_map(u16::to_be_bytes);
    let value = Value::Undefined(b"UNICODE\0".iter().copied().chain(utf16).collect(), 0);
    let field = Field { tag: Tag::UserComment, ifd_num: In::PRIMARY, value };
    let mut writer = Writer::new();
    writer.push_field(&field);
    let mut bytes = Cursor::new(Vec::new());
    writer.write(&mut bytes, false)?;
    Ok(bytes.into_inner())
}

/// A text with its key in a PNG. ComfyUI writes `prompt:` and JSON into one field, `workflow:` and JSON into another
/// (`comfy_extras/nodes_images.py`, `SaveAnimatedWEBP`: Model, then Make and descending tags).
fn named(field: &str, text: String) -> ImageText {
    let place = "Exif".to_string();
    for key in ["prompt", "workflow"] {
        let begin = text.get(..key.len()).filter(|begin| begin.eq_ignore_ascii_case(key));
        let json = begin.and_then(|begin| text.get(begin.len()..)?.strip_prefix(':')).map(str::trim_start);
        if let Some(json) = json.filter(|json| json.starts_with('{')) {
            return ImageText { place: format!("{place}, {field}"), key: key.into(), text: json.into() };
        }
    }
    ImageText { place, key: field.into(), text }
}

/// A `UserComment`: 8 bytes with the name of the encoding, then the text. Exif 2.32, section 4.6.5.
fn comment(bytes: &[u8]) -> String {
    let text = match bytes.split_at_checked(8) {
        Some((b"UNICODE\0", text)) => utf16(text),
        Some((b"ASCII\0\0\0" | b"\0\0\0\0\0\0\0\0" | b"JIS\0\0\0\0\0", text)) => {
            String::from_utf8_lossy(text).into_owned()
        }
        _ => String::from_utf8_lossy(bytes).into_owned(),
    };
    text.trim_end_matches('\0').into()
}

/// "Unicode" is UCS-2 with unspecified byte order: AUTOMATIC1111 writes big-endian, others little-endian in any Exif
/// byte order, some UTF-8. The order with more characters below U+0100 is used.
fn utf16(bytes: &[u8]) -> String {
    let (big, rest) = match bytes {
        [0xfe, 0xff, rest @ ..] => (Some(true), rest),
        [0xff, 0xfe, rest @ ..] => (Some(false), rest),
        rest => (None, rest),
    };
    let zeros = |at: usize| rest.iter().skip(at).step_by(2).filter(|&&byte| byte == 0).count();
    if big.is_none() && zeros(0) + zeros(1) == 0 && rest.is_ascii() {
        return String::from_utf8_lossy(rest).into_owned();
    }
    let big = big.unwrap_or(zeros(0) >= zeros(1));
    let read = |pair: &[u8; 2]| if big { u16::from_be_bytes(*pair) } else { u16::from_le_bytes(*pair) };
    String::from_utf16_lossy(&rest.as_chunks().0.iter().map(read).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A TIFF with a `UserComment`, as in Exif data.
    fn tiff(comment: &[u8]) -> Vec<u8> {
        let entry = |tag: u16, kind: u16, count: u32, value: u32| {
            [&tag.to_be_bytes()[..], &kind.to_be_bytes(), &count.to_be_bytes(), &value.to_be_bytes()].concat()
        };
        let mut bytes = b"MM\0\x2a\0\0\0\x08\0\x01".to_vec();
        bytes.extend(entry(0x8769, 4, 1, 26)); // Exif's own fields
        bytes.extend([0, 0, 0, 0, 0, 1]);
        bytes.extend(entry(0x9286, 7, comment.len() as u32, 44));
        bytes.extend([0; 4]);
        bytes.extend(comment);
        bytes
    }

    fn jpeg(comment: &[u8]) -> Vec<u8> {
        let exif = [b"Exif\0\0".as_slice(), &tiff(comment)].concat();
        let length = (exif.len() as u16 + 2).to_be_bytes();
        [b"\xff\xd8\xff\xe1".as_slice(), &length, &exif, b"\xff\xd9"].concat()
    }

    fn webp(comment: &[u8]) -> Vec<u8> {
        let mut exif = tiff(comment);
        let length = exif.len() as u32;
        exif.resize(exif.len().next_multiple_of(2), 0);
        let body = [b"WEBPVP8X\x0a\0\0\0\x08\0\0\0\0\0\0\0\0\0EXIF".as_slice(), &length.to_le_bytes(), &exif].concat();
        [b"RIFF".as_slice(), &(body.len() as u32).to_le_bytes(), &body].concat()
    }

    fn texts(bytes: &[u8]) -> Vec<String> {
        read(&mut Cursor::new(bytes)).into_iter().map(|text| format!("{}: {}", text.key, text.text)).collect()
    }

    #[test]
    fn comments_of_every_encoding_are_read() {
        let text = "a circle, 円\nSteps: 20";
        let units: Vec<u16> = text.encode_utf16().collect();
        let big: Vec<u8> = units.iter().flat_map(|unit| unit.to_be_bytes()).collect();
        let little: Vec<u8> = units.iter().flat_map(|unit| unit.to_le_bytes()).collect();
        for comment in [
            [b"UNICODE\0".as_slice(), &big].concat(),
            [b"UNICODE\0".as_slice(), &little].concat(),
            [b"UNICODE\0\xfe\xff".as_slice(), &big].concat(),
            [b"UNICODE\0\xff\xfe".as_slice(), &little].concat(),
            [b"ASCII\0\0\0".as_slice(), text.as_bytes(), b"\0"].concat(),
            [b"\0\0\0\0\0\0\0\0".as_slice(), text.as_bytes()].concat(),
            text.as_bytes().to_vec(),
        ] {
            assert_eq!(texts(&jpeg(&comment)), [format!("UserComment: {text}")]);
            assert_eq!(texts(&webp(&comment)), [format!("UserComment: {text}")]);
        }
        assert_eq!(texts(&jpeg(b"UNICODE\0plain")), ["UserComment: plain"]);
    }

    /// The fields of a WebP of ComfyUI, in little-endian order as Pillow writes them.
    #[test]
    fn comfyui_fields_are_named() {
        let (workflow, prompt) = (b"workflow:{\"nodes\": []}\0", b"prompt:{\"3\": {\"class_type\": \"KSampler\"}}\0");
        let entry = |tag: u16, count: usize, at: usize| {
            let numbers = [(count as u32).to_le_bytes(), (at as u32).to_le_bytes()].concat();
            [&tag.to_le_bytes()[..], &2u16.to_le_bytes(), &numbers].concat()
        };
        let start = 8 + 2 + 2 * 12 + 4;
        let mut tiff = b"II\x2a\0\x08\0\0\0\x02\0".to_vec();
        tiff.extend(entry(0x010f, workflow.len(), start));
        tiff.extend(entry(0x0110, prompt.len(), start + workflow.len()));
        tiff.extend([0; 4]);
        tiff.extend([&workflow[..], &prompt[..]].concat());
        tiff.resize(tiff.len().next_multiple_of(2), 0);
        let body =
            [b"WEBPVP8X\x0a\0\0\0\x08\0\0\0\0\0\0\0\0\0EXIF".as_slice(), &(tiff.len() as u32).to_le_bytes(), &tiff];
        let body = body.concat();
        let webp = [b"RIFF".as_slice(), &(body.len() as u32).to_le_bytes(), &body].concat();
        let found = texts(&webp);
        assert_eq!(found, ["workflow: {\"nodes\": []}", "prompt: {\"3\": {\"class_type\": \"KSampler\"}}"]);
    }

    #[test]
    fn damaged_files_do_not_panic() {
        for whole in [jpeg(b"ASCII\0\0\0a circle"), webp(b"ASCII\0\0\0a circle")] {
            for end in 0..whole.len() {
                texts(&whole[..end]);
            }
            for at in 0..whole.len() {
                for value in [0, 1, 0x7f, 0xff] {
                    let mut damaged = whole.clone();
                    damaged[at] = value;
                    texts(&damaged);
                }
            }
        }
    }
}
