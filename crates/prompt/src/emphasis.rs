//! The effect of a token's weight on an encoder's output.
//!
//! The arithmetic is in f32 on the host: there are only a few thousand values, and every device gets the same bits.

use std::f64::consts::FRAC_PI_2;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The method that applies weights to a chunk's hidden states `z` `(tokens, d)`, with a weight `w` for each token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Emphasis {
    /// `z w`, then scaled so that the chunk's mean does not change: AUTOMATIC1111's "Original".
    #[default]
    Original,
    /// `z w`: AUTOMATIC1111's "No norm".
    NoNorm,
    /// Brackets are parsed, weights are not used: AUTOMATIC1111's "Ignore".
    Ignore,
    /// `empty + (z - empty) w`, with the empty text's hidden states: ComfyUI's.
    Comfy,
    /// Like [`Self::Comfy`], and for each span with a weight below 1 a blend with the prompt without it: compel's.
    Compel,
    /// Brackets are plain text: AUTOMATIC1111's "None".
    None,
}

impl Emphasis {
    /// All methods, in the order of help texts.
    pub const ALL: [Self; 6] = [Self::Original, Self::NoNorm, Self::Ignore, Self::Comfy, Self::Compel, Self::None];

    /// Its name on a command line.
    pub fn id(self) -> &'static str {
        match self {
            Self::Original => "original",
            Self::NoNorm => "no-norm",
            Self::Ignore => "ignore",
            Self::Comfy => "comfy",
            Self::Compel => "compel",
            Self::None => "none",
        }
    }

    /// AUTOMATIC1111's name, as in the metadata of its images.
    pub fn label(self) -> &'static str {
        match self {
            Self::Original => "Original",
            Self::NoNorm => "No norm",
            Self::Ignore => "Ignore",
            Self::Comfy => "ComfyUI",
            Self::Compel => "Compel",
            Self::None => "None",
        }
    }
}

impl FromStr for Emphasis {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|emphasis| emphasis.id() == text)
            .ok_or_else(|| "expected original, no-norm, ignore, comfy, compel or none".into())
    }
}

/// `z w` for each token; `z` `(tokens, d)`.
pub fn scale(z: &mut [f32], weights: &[f32]) {
    for (row, &weight) in rows(z, weights.len()).zip(weights) {
        row.iter_mut().for_each(|value| *value *= weight);
    }
}

/// Scales `z` to the mean `wanted`. A mean of 0 cannot be scaled, so `z` does not change then.
pub fn restore_mean(z: &mut [f32], wanted: f32) {
    let ratio = wanted / mean(z);
    if ratio.is_finite() {
        z.iter_mut().for_each(|value| *value *= ratio);
    }
}

/// The mean, summed in f64.
pub fn mean(z: &[f32]) -> f32 {
    (z.iter().map(|&value| f64::from(value)).sum::<f64>() / z.len().max(1) as f64) as f32
}

/// `empty + (z - empty) w` for tokens with a weight other than 1; `z` and `empty` `(tokens, d)`.
pub fn away_from_empty(z: &mut [f32], empty: &[f32], weights: &[f32]) {
    let tokens = weights.len();
    let width = empty.len() / tokens.max(1);
    for ((row, empty), &weight) in rows(z, tokens).zip(empty.chunks_exact(width.max(1))).zip(weights) {
        if weight != 1.0 {
            row.iter_mut().zip(empty).for_each(|(value, &empty)| *value = empty + (*value - empty) * weight);
        }
    }
}

/// The blend factor for the prompt without a span of `weight` below 1: `tan((1 - weight) pi / 2)`, which is 0 at 1 and
/// unbounded towards 0.
pub fn blend_of(weight: f32) -> f32 {
    const LEAST: f64 = 1e-5;
    ((1.0 - f64::from(weight).max(LEAST)) * FRAC_PI_2).tan() as f32
}

fn rows(z: &mut [f32], tokens: usize) -> impl Iterator<Item = &mut [f32]> {
    let width = z.len() / tokens.max(1);
    z.chunks_exact_mut(width.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for emphasis in Emphasis::ALL {
            assert_eq!(emphasis.id().parse(), Ok(emphasis));
        }
        assert!("Original".parse::<Emphasis>().unwrap_err().contains("no-norm"));
    }

    #[test]
    fn the_mean_is_restored() {
        let mut z = [1.0, 2.0, 3.0, 6.0];
        let wanted = mean(&z);
        scale(&mut z, &[1.0, 2.0]);
        assert_eq!(z, [1.0, 2.0, 6.0, 12.0]);
        restore_mean(&mut z, wanted);
        assert!((mean(&z) - 3.0).abs() < 1e-6);
        let mut none = [1.0, -1.0];
        restore_mean(&mut none, 5.0);
        assert_eq!(none, [1.0, -1.0]);
    }

    #[test]
    fn weights_lead_away_from_the_empty_text() {
        let mut z = [1.0, 2.0, 3.0, 4.0];
        away_from_empty(&mut z, &[0.0, 0.0, 1.0, 1.0], &[1.0, 2.0]);
        assert_eq!(z, [1.0, 2.0, 5.0, 7.0]);
    }

    #[test]
    fn half_a_weight_blends_half() {
        assert!((blend_of(0.5) - 1.0).abs() < 1e-6);
        assert!(blend_of(0.0) > 1e4 && blend_of(-1.0).is_finite());
    }
}
