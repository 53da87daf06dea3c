//! Memory sizes in the form that users write.

use std::fmt;
use std::str::FromStr;

/// A number of bytes: `6G`, `512M`, `1.5g`, `64K`, or plain bytes. K, M and G are powers of 1024, as in every tool that
/// bounds memory; `KiB`, `KB` and the like mean the same.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub usize);

const UNITS: [(char, u32); 4] = [('k', 10), ('m', 20), ('g', 30), ('t', 40)];

impl FromStr for ByteSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || "expected a size such as 6G, 512M or 64K (powers of 1024)".to_string();
        let lower = text.to_ascii_lowercase();
        let number = lower.trim_end_matches("ib").trim_end_matches('b');
        let unit = number.chars().last().and_then(|last| UNITS.iter().find(|(letter, _)| *letter == last));
        let (number, shift) = match unit {
            Some((letter, shift)) => (number.trim_end_matches(*letter), *shift),
            None => (number, 0),
        };
        let plain = number.chars().all(|c| c.is_ascii_digit() || c == '.');
        let value: f64 = Some(number).filter(|_| plain).and_then(|number| number.parse().ok()).ok_or_else(error)?;
        let bytes = value * 2f64.powi(shift as i32);
        if bytes >= 1.0 && bytes < isize::MAX as f64 { Ok(Self(bytes as usize)) } else { Err(error()) }
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{bytes} B"),
            1024..1_048_576 => write!(f, "{:.1} KiB", bytes / 1024.0),
            1_048_576..1_073_741_824 => write!(f, "{:.1} MiB", bytes / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", bytes / 1_073_741_824.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_powers_of_1024() {
        let bytes = |text: &str| text.parse::<ByteSize>().map(|size| size.0);
        assert_eq!(bytes("6G"), Ok(6 << 30));
        assert_eq!(bytes("1.5g"), Ok(3 << 29));
        assert_eq!(bytes("64MiB"), Ok(64 << 20));
        assert_eq!(bytes("64MB"), bytes("64m"));
        assert_eq!(bytes("12K"), Ok(12 << 10));
        assert_eq!(bytes("4096"), Ok(4096));
        for wrong in ["", "G", "-1G", "1e9", "6X", "0", "G6", "1..5G", "nan", "inf", "99999999T", " 5", "5 ", "5 G"] {
            assert!(bytes(wrong).unwrap_err().contains("such as 6G"), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_displayed_in_a_suitable_unit() {
        let values = [512, 1 << 10, 94 << 20, 5 << 30].map(|bytes| ByteSize(bytes).to_string());
        assert_eq!(values, ["512 B", "1.0 KiB", "94.0 MiB", "5.00 GiB"]);
    }
}
