//! The results of the tests: one JSON object a line, written by `kiln_testkit::Parity`.

use std::path::Path;

use serde::Deserialize;

use crate::Result;
use crate::workspace::read;

/// One comparison.
#[derive(Debug, Clone, Deserialize)]
pub struct Record {
    /// `text`, `unet`, `vae`, `pipeline`.
    pub part: String,
    /// The fixture's model.
    pub model: String,
    /// The compared stage: `8x8 down.0`, `p0.e1.hidden.2 F16`, or the name of a pipeline's case.
    pub stage: String,
    /// In standard deviations of the expected values.
    pub error: f64,
    /// The error that the test allows.
    pub bound: f64,
}

impl Record {
    /// The kind of stage: its name without sizes and numbers.
    pub fn kind(&self) -> String {
        let words = self.stage.split([' ', '.']).filter(|word| !is_number(word));
        words
            .map(|word| if ["F16", "BF16"].contains(&word) { word.to_lowercase() } else { word.into() })
            .collect::<Vec<_>>()
            .join(" ")
    }
}

/// Whether a word is a count: `3`, `8x12`, `p0` (prompt), `e2` (encoder).
fn is_number(word: &str) -> bool {
    let digits = word.strip_prefix(['p', 'e']).unwrap_or(word);
    digits.split('x').all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Reads every file of `folder`.
pub fn read_folder(folder: &Path) -> Result<Vec<Record>> {
    let mut records = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        for line in read(&entry?.path())?.lines() {
            let mut record: Record = serde_json::from_str(line)?;
            // All of the page is in f32.
            record.model = record.model.strip_suffix(" f32").unwrap_or(&record.model).into();
            records.push(record);
        }
    }
    if records.is_empty() { Err("the tests recorded no comparison".into()) } else { Ok(records) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_no_numbers() {
        let kind = |stage: &str| {
            Record { part: String::new(), model: String::new(), stage: stage.into(), error: 0.0, bound: 0.0 }.kind()
        };
        assert_eq!(kind("8x12 down.0"), "down");
        assert_eq!(kind("p0.e2.hidden.2 normalized"), "hidden normalized");
        assert_eq!(kind("p2.e2.pooled BF16"), "pooled bf16");
        assert_eq!(kind("log variance 1"), "log variance");
        assert_eq!(kind("7x5 out"), "out");
    }
}
