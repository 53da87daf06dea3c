//! SHA-256, and bytes in hexadecimal digits.

use ring::digest::{Context, SHA256, digest};

/// An incremental SHA-256.
#[derive(Clone)]
pub struct Sha256(Context);

impl Default for Sha256 {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Sha256 {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest in 64 hexadecimal digits.
    pub fn finish(self) -> String {
        hex(self.0.finish().as_ref())
    }
}

impl std::fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sha256")
    }
}

/// The SHA-256 of `bytes` in 64 hexadecimal digits.
pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FIPS 180-2, appendix B.1.
    #[test]
    fn known_digests() {
        const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(b"abc"), ABC);
        let mut hash = Sha256::default();
        [b"a".as_slice(), b"", b"bc"].into_iter().for_each(|piece| hash.update(piece));
        assert_eq!(hash.finish(), ABC);
        assert_eq!(hex(&[0, 10, 255]), "000aff");
    }
}
