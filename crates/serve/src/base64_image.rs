//! Images in Base64, as requests have them.

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::error::Refused;

/// Base64 with padding or without.
const TOLERANT: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The bytes of an image in Base64, with `data:image/...;base64,` before it or without. Spaces and line breaks are left out.
///
/// # Errors
/// [`Refused`] with the field `name` for other text, and for addresses: the server fetches nothing.
pub(crate) fn decode(name: &str, text: &str) -> Result<Vec<u8>, Refused> {
    let refuse = |found: &str| Err(Refused::value(name, found, "an image in Base64"));
    let text = text.trim();
    let content = match text.split_once(',') {
        Some((head, content)) if head.starts_with("data:") && head.ends_with(";base64") => content,
        _ if text.starts_with("http://") || text.starts_with("https://") => return refuse("an address"),
        _ => text,
    };
    if content.is_empty() {
        return refuse("empty");
    }
    let has_spaces = content.bytes().any(|byte| byte.is_ascii_whitespace());
    let plain: Vec<u8>;
    let content = if has_spaces {
        plain = content.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
        &plain[..]
    } else {
        content.as_bytes()
    };
    TOLERANT.decode(content).or_else(|error| refuse(&format!("no Base64 ({error})")))
}

/// Bytes in Base64.
pub(crate) fn encode(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_read_as_clients_write_it() {
        for text in ["aGFsbG8=", "aGFsbG8", " aGFs\nbG8=\n", "data:image/png;base64,aGFsbG8="] {
            assert_eq!(decode("init", text).unwrap(), b"hallo", "{text}");
        }
        assert_eq!(encode(b"hallo"), "aGFsbG8=");
        for (text, found) in [
            ("", "is empty"),
            ("/etc/passwd.png", "no Base64"),
            ("http://127.0.0.1/", "an address"),
            ("data:image/png;base64,", "is empty"),
        ] {
            let refused = decode("init", text).unwrap_err();
            assert!(refused.message.contains(found) && refused.param.as_deref() == Some("init"), "{refused:?}");
        }
    }
}
