//! The checksums of the Hub: SHA-256 of large files, the hash that git gives small ones.

use std::fmt;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// What a file's content must be; its text is the name of the content in the cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Checksum {
    /// SHA-256 of the content: of files that git has as pointers (LFS).
    Sha256(String),
    /// SHA-1 of git's header and the content.
    GitBlob(String),
}

impl Checksum {
    /// The checksum that an entity tag or a field of a listing has, by its length; `None` where it is none.
    pub(crate) fn of(text: &str) -> Option<Self> {
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

    /// Its digits.
    pub(crate) fn text(&self) -> &str {
        match self {
            Self::Sha256(text) | Self::GitBlob(text) => text,
        }
    }

    /// Begins to sum content of `size` bytes.
    pub(crate) fn begin(&self, size: u64) -> Sum {
        match self {
            Self::Sha256(_) => Sum(Context::new(&SHA256)),
            Self::GitBlob(_) => {
                let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
                context.update(format!("blob {size}\0").as_bytes());
                Sum(context)
            }
        }
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}

/// The checksum of what came so far.
pub(crate) struct Sum(Context);

impl Sum {
    /// Adds bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digits.
    pub(crate) fn end(self) -> String {
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
    fn both_kinds_are_those_of_other_tools() {
        for text in [SHA256_OF, BLOB_OF] {
            let checksum = Checksum::of(&format!("\"{text}\"")).unwrap();
            let mut sum = checksum.begin(CONTENT.len() as u64);
            CONTENT.chunks(4).for_each(|part| sum.add(part));
            assert_eq!(sum.end(), text);
            assert_eq!(checksum.text(), text);
        }
    }

    #[test]
    fn other_tags_are_no_checksums() {
        for text in ["", "\"abc\"", &SHA256_OF.to_uppercase(), &SHA256_OF[1..], "../../../../etc/passwd"] {
            assert_eq!(Checksum::of(text), None, "{text}");
        }
        assert!(Checksum::of(&format!("W/\"{BLOB_OF}\"")).is_some());
    }
}
