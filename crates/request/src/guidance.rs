//! Checks of the options of classifier-free guidance.

use crate::error::{Error, Result};
use crate::options::GuidanceOptions;

/// Dynamic thresholding for latents: the range of weaker guidance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Threshold {
    /// The share of the values that is not clipped, 0 to 1.
    pub percentile: f64,
    /// The strength of the guidance whose range the image gets.
    pub mimic_scale: f64,
}

/// The default of the mimicked scale, as in both extensions that have it.
const MIMIC_SCALE: f64 = 7.0;

impl GuidanceOptions {
    /// Checks values that depend on each other, and fills in the mimicked strength.
    pub fn check(mut self) -> Result<Self> {
        if self.start > self.end {
            let expected = format!("at most `guidance_end`, which is {}", self.end);
            return Err(Error::Value { name: "guidance_start", found: self.start.to_string(), expected });
        }
        self.mimic_scale = self.percentile.map(|_| self.mimic_scale.unwrap_or(MIMIC_SCALE));
        Ok(self)
    }

    /// Dynamic thresholding, if it is on.
    pub fn threshold(&self) -> Option<Threshold> {
        let threshold = |percentile| Threshold { percentile, mimic_scale: self.mimic_scale.unwrap_or(MIMIC_SCALE) };
        self.percentile.map(threshold)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_values_are_named() {
        let message = |options: GuidanceOptions| options.check().unwrap_err().to_string();
        let default = GuidanceOptions::default();
        assert!(message(GuidanceOptions { start: 0.8, end: 0.5, ..default }).contains("at most `guidance_end`"));
    }
}
