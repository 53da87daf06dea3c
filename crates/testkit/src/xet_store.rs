//! The storage of large files that the Hub's server sends Xet clients to: which chunks a file consists of, and the chunks.
//!
//! The formats are those of the Xet protocol (version 1 of the reconstructions): a file is a list of terms, each a range of
//! chunks in a container ("xorb"); a chunk is 8 bytes of header and its content, which is not compressed here.

/// Bytes of a chunk before its end. Chunks are cut by content in the real storage; clients do not depend on it.
const CHUNK: usize = 50_000;
/// Bytes of a chunk's header.
const HEADER: usize = 8;

/// The container with all chunks of a file.
pub(crate) fn container(content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for chunk in content.chunks(CHUNK) {
        let size = (chunk.len() as u32).to_le_bytes();
        // Version, stored size in three bytes, no compression, size in three bytes.
        bytes.extend([0, size[0], size[1], size[2], 0, size[0], size[1], size[2]]);
        bytes.extend(chunk);
    }
    bytes
}

/// The answer that describes the bytes `first..=last` of a file: JSON, or `None` if there are no such bytes. `url` is where the
/// container is, `hash` its name.
pub(crate) fn reconstruction(size: usize, first: usize, last: usize, hash: &str, url: &str) -> Option<String> {
    if first >= size {
        return None;
    }
    let last = last.min(size - 1);
    let (mut terms, mut parts) = (Vec::new(), Vec::new());
    for i in first / CHUNK..=last / CHUNK {
        let length = CHUNK.min(size - i * CHUNK);
        let begin = i * (CHUNK + HEADER);
        let (next, end) = (i + 1, begin + HEADER + length - 1);
        let range = format!(r#""range":{{"start":{i},"end":{next}}}"#);
        terms.push(format!(r#"{{"hash":"{hash}","unpacked_length":{length},{range}}}"#));
        parts.push(format!(r#"{{{range},"url":"{url}","url_range":{{"start":{begin},"end":{end}}}}}"#));
    }
    Some(format!(
        r#"{{"offset_into_first_range":{},"terms":[{}],"fetch_info":{{"{hash}":[{}]}}}}"#,
        first % CHUNK,
        terms.join(","),
        parts.join(",")
    ))
}

/// The bytes that a header `Range` names: `bytes=FIRST-LAST`.
pub(crate) fn range(header: Option<&String>) -> Option<(usize, usize)> {
    let (first, last) = header?.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_begins_within_its_first_chunk() {
        let content = vec![7; CHUNK + 10];
        let bytes = container(&content);
        assert_eq!(bytes.len(), content.len() + 2 * HEADER);
        assert_eq!(bytes[CHUNK + HEADER..][..HEADER], [0, 10, 0, 0, 0, 10, 0, 0]);
        let json = reconstruction(content.len(), CHUNK + 3, content.len(), "h", "u").unwrap();
        assert!(
            json.starts_with(r#"{"offset_into_first_range":3,"terms":[{"hash":"h","unpacked_length":10"#),
            "{json}"
        );
        assert!(json.contains(&format!(r#""url_range":{{"start":{},"end":{}}}"#, CHUNK + HEADER, bytes.len() - 1)));
        assert_eq!(reconstruction(content.len(), content.len(), content.len(), "h", "u"), None);
    }
}
