//! How much a PNG is compressed.

use std::fmt;
use std::str::FromStr;

/// The compression of a PNG: of time against size. The pixels are the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PngLevel {
    /// None: the largest files.
    None,
    /// In the least time.
    #[default]
    Fast,
    /// In more time, for somewhat smaller files.
    Balanced,
    /// In much more time, for the smallest files.
    Best,
}

impl PngLevel {
    const ALL: [Self; 4] = [Self::None, Self::Fast, Self::Balanced, Self::Best];

    /// The encoder's compression.
    pub(crate) fn compression(self) -> png::Compression {
        match self {
            Self::None => png::Compression::NoCompression,
            Self::Fast => png::Compression::Fast,
            Self::Balanced => png::Compression::Balanced,
            Self::Best => png::Compression::High,
        }
    }
}

impl fmt::Display for PngLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Fast => "fast",
            Self::Balanced => "balanced",
            Self::Best => "best",
        })
    }
}

impl FromStr for PngLevel {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|level| level.to_string() == text);
        known.ok_or_else(|| format!("expected {}", Self::ALL.map(|level| level.to_string()).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DecodeOptions, decode, encode_png_at};

    #[test]
    fn levels_differ_in_size_alone() {
        let rgb: Vec<u8> = (0..64 * 64 * 3).map(|i| (i / 3 % 64 + i / 192 + i % 3 * 40) as u8).collect(); // gradients
        let sizes = PngLevel::ALL.map(|level| {
            let bytes = encode_png_at((64, 64), &rgb, &[("parameters", "a cat")], level).unwrap();
            assert_eq!(decode(&bytes, "test", &DecodeOptions::default()).unwrap().rgb().data(), rgb, "{level}");
            assert_eq!(level.to_string().parse(), Ok(level));
            bytes.len()
        });
        assert!(sizes[0] > sizes[1] && sizes[0] > sizes[3] && sizes[3] <= sizes[2], "{sizes:?}");
        assert_eq!("9".parse::<PngLevel>().unwrap_err(), "expected none, fast, balanced, best");
    }
}
