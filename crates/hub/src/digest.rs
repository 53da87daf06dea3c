//! Checksums of the Hub's files: SHA-256 of files in LFS, and git's hash of the others.

use std::fmt;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// The expected checksum of a file's content. Its digits are the content's name in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Checksum {
    /// SHA-256 of the content: of files that git has as pointers (LFS).
    Sha256(String),
    /// SHA-1 of git's header and the content.
    GitBlob(String),
}

impl Checksum {
    /// Parses an entity tag or a field of a listing. The number of digits decides which checksum it is; `None` if it is none.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim().trim_start_matches("W/").trim_matches('"');
        if !text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte)) {
            return None;
        }
        match text.len() {
            64 => Some(Self::Sha256(text.into())),
            40 => Some(Self::GitBlob(text.into())),
            _ => None,
        }
    }

    /// The digits, if the text is a SHA-256.
    pub(crate) fn sha256_digits(text: &str) -> Option<&str> {
        matches!(Self::parse(text), Some(Self::Sha256(digits)) if digits == text).then_some(text)
    }

    /// The hexadecimal digits, in lower case.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Sha256(text) | Self::GitBlob(text) => text,
        }
    }

    /// A hasher for content of `size` bytes.
    pub(crate) fn hasher(&self, size: u64) -> Hasher {
        match self {
            Self::Sha256(_) => Hasher(Context::new(&SHA256)),
            Self::GitBlob(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                Hasher(context)
            }
        }
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// Computes a checksum.
pub(crate) struct Hasher(Context);

impl Hasher {
    /// Adds bytes of the content.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The hexadecimal digits of the checksum.
    pub(crate) fn finish(self) -> String {
        self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The content with its checksums by `sha256sum` and `git hash-object`.
    const CONTENT: &[u8] = b"hello\n";
    const SHA256_OF: &str = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
    const BLOB_OF: &str = "ce013625030ba8dba906f756967f9e9ca394464a";

    #[test]
    fn checksums_are_those_of_other_tools() {
        for text in [SHA256_OF, BLOB_OF] {
            let checksum = Checksum::parse(&format!("\"{text}\"")).unwrap();
            let mut hasher = checksum.hasher(CONTENT.len() as u64);
            CONTENT.chunks(4).for_each(|part| hasher.update(part));
            assert_eq!(hasher.finish(), text);
            assert_eq!(checksum.text(), text);
        }
    }

    #[test]
    fn other_tags_are_no_checksums() {
        for text in ["", "\"abc\"", &SHA256_OF.to_uppercase(), &SHA256_OF[1..], "../../../../etc/passwd"] {
            assert_eq!(Checksum::parse(text), None, "{text}");
        }
        assert!(Checksum::parse(&format!("W/\"{BLOB_OF}\"")).is_some());
    }
}
