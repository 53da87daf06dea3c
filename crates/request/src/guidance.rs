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
        if self.slg_start > self.slg_end {
            let expected = format!("at most `slg_end`, which is {}", self.slg_end);
            return Err(Error::Value { name: "slg_start", found: self.slg_start.to_string(), expected });
        }
        self.mimic_scale = self.percentile.map(|_| self.mimic_scale.unwrap_or(MIMIC_SCALE));
        Ok(self)
    }

    /// Whether skip-layer guidance acts in an evaluation of so many: strictly between start and end, as in diffusers'
    /// `StableDiffusion3Pipeline`.
    pub fn skips_at(&self, evaluation: usize, evaluations: usize) -> bool {
        let (place, all) = (evaluation as f64, evaluations as f64);
        self.slg_scale > 0.0 && place > all * self.slg_start && place < all * self.slg_end
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

    /// `num_inference_steps * start < i < num_inference_steps * stop`.
    #[test]
    fn skip_layer_guidance_is_strictly_between_its_ends() {
        let of = |slg_start, slg_end| {
            let options = GuidanceOptions { slg_scale: 2.8, slg_start, slg_end, ..GuidanceOptions::default() };
            (0..5).filter(|&i| options.skips_at(i, 5)).collect::<Vec<_>>()
        };
        assert_eq!(of(0.01, 0.6), [1, 2]);
        assert_eq!(of(0.0, 1.0), [1, 2, 3, 4]);
        assert_eq!(of(0.2, 0.4), [0usize; 0]);
        assert!(!GuidanceOptions::default().skips_at(1, 100));
    }

    #[test]
    fn impossible_values_are_named() {
        let message = |options: GuidanceOptions| options.check().unwrap_err().to_string();
        let default = GuidanceOptions::default();
        assert!(message(GuidanceOptions { slg_start: 0.8, slg_end: 0.5, ..default }).contains("at most `slg_end`"));
        assert!(message(GuidanceOptions { start: 0.8, end: 0.5, ..default }).contains("at most `guidance_end`"));
    }
}
