//! What a user says of memory.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A number of bytes. `6G`, `512M`, `64K` and plain numbers are read; K, M and G are powers of 1024, and `6GB` and
/// `6GiB` mean the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected a size such as 6G, 1.5G or 512M".to_string();
        let upper = text.trim().to_ascii_uppercase();
        let split = upper.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(upper.len());
        let (number, unit) = upper.split_at(split);
        let shift = match unit.trim_start() {
            "" | "B" => 0,
            "K" | "KB" | "KIB" => 10,
            "M" | "MB" | "MIB" => 20,
            "G" | "GB" | "GIB" => 30,
            "T" | "TB" | "TIB" => 40,
            _ => return Err(expected()),
        };
        let bytes = number.parse::<f64>().map_err(|_| expected())? * (1u64 << shift) as f64;
        // Beyond 2^53 an f64 skips whole numbers; no machine has as many bytes.
        if (0.0..(1u64 << 53) as f64).contains(&bytes) { Ok(Self(bytes as u64)) } else { Err(expected()) }
    }
}

impl fmt::Display for ByteSize {
    /// In MiB, from ten GiB on in GiB.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 10 << 30 => write!(f, "{:.1} GiB", bytes as f64 / (1u64 << 30) as f64),
            bytes if bytes >= 1 << 20 => write!(f, "{} MiB", bytes.div_ceil(1 << 20)),
            bytes if bytes >= 1 << 10 => write!(f, "{} KiB", bytes.div_ceil(1 << 10)),
            bytes => write!(f, "{bytes} bytes"),
        }
    }
}

/// Which mode a run begins in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ModeChoice {
    /// The fastest that fits into the budget, or into the memory that is free.
    #[default]
    Auto,
    /// `--highvram`: everything stays.
    Full,
    /// `--medvram`: one network at a time.
    Medvram,
    /// `--lowvram`: of a network what runs next.
    Lowvram,
}

/// How the autoencoder bounds its memory. What is not said is as the budget wants it; none of it changes a picture.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct VaeMemory {
    /// Decodes and encodes in strips of rows.
    pub tiling: bool,
    /// Rows of a strip, in pixels of the picture; `None` is what the budget leaves room for.
    pub tile_size: Option<usize>,
}

/// What a user says of memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryOptions {
    /// The mode.
    pub mode: ModeChoice,
    /// A ceiling for what Kiln asks for: a card's memory, or on the processor weights, tensors and arenas.
    pub budget: Option<ByteSize>,
    /// Keeps a card's memory for the next allocation, rather than giving it back as the driver would.
    pub cuda_malloc: bool,
    /// Copies weights to a card while it computes.
    pub cuda_stream: bool,
    /// Keeps weights that wait for their turn in page-locked memory, from which copies are fast.
    pub pin_shared_memory: bool,
    /// The autoencoder's part.
    pub vae: VaeMemory,
}

impl Default for MemoryOptions {
    fn default() -> Self {
        Self {
            mode: ModeChoice::Auto,
            budget: None,
            cuda_malloc: true,
            cuda_stream: true,
            pin_shared_memory: true,
            vae: VaeMemory::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        let sizes =
            ["6G", "1.5g", "512M", "512 MiB", "64K", "100", "0"].map(|text| text.parse::<ByteSize>().unwrap().0);
        assert_eq!(sizes, [6 << 30, 3 << 29, 512 << 20, 512 << 20, 64 << 10, 100, 0]);
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "G", "-1G", "1X", "1e3", "many", "99999999T", "1.2.3M"] {
            assert!(text.parse::<ByteSize>().unwrap_err().contains("such as 6G"), "{text}");
        }
    }

    #[test]
    fn sizes_are_told_in_whole_units() {
        let told = [64, 3 << 10, 100 << 20, (9 << 30) + 1, 12 << 30].map(|bytes| ByteSize(bytes).to_string());
        assert_eq!(told, ["64 bytes", "3 KiB", "100 MiB", "9217 MiB", "12.0 GiB"]);
    }
}
