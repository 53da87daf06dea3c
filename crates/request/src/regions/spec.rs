//! The place of a part of the prompt in a request.

use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::keyed;
use crate::strength::{MAX_WEIGHT, is_one, one};

/// Where a part of the prompt acts, how strongly, and the texts that are blended into it.
///
/// The first region belongs to the first part that `AND` separates, and so on. A part without a region acts on the whole
/// image. With regions, the predictions of all parts are averaged by their strengths at each latent, as ComfyUI does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionUse {
    /// The rectangle for which the part's prediction is computed, in pixels: left, top, width, height. Its border fades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pixels: Option<[usize; 4]>,
    /// A rectangle in shares of the image's sides, 0 to 1, in this order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<[f64; 4]>,
    /// An image that is white for the part and black elsewhere. With a mask no border fades.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mask: Option<PathBuf>,
    /// Whether the rectangle is the smallest one around the mask.
    #[serde(default, skip_serializing_if = "is_false")]
    pub bounds: bool,
    /// The factor of the part's weight.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub strength: f64,
    /// Texts whose vectors are added to the part's own, which are multiplied by 1 less the sum of their weights.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blend: Vec<BlendText>,
}

/// A text that is blended into a part of the prompt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BlendText {
    /// The text.
    pub text: String,
    /// The factor of its vectors.
    pub weight: f64,
}

/// The keys of the text form, in their order.
const KEYS: [&str; 7] = ["pixels", "share", "mask", "bounds", "strength", "blend", "weight"];
/// Those whose values may have commas.
const FREE: [&str; 2] = ["mask", "blend"];
/// The most texts that are blended into one part.
const MAX_BLEND: usize = 8;
/// The weight of a text in the text form without `weight`.
const USUAL_WEIGHT: f64 = 0.5;

fn is_false(value: &bool) -> bool {
    !*value
}

impl Default for RegionUse {
    /// The whole image.
    fn default() -> Self {
        Self { pixels: None, share: None, mask: None, bounds: false, strength: 1.0, blend: Vec::new() }
    }
}

impl RegionUse {
    /// Whether the part acts on a part of the image alone.
    pub fn is_placed(&self) -> bool {
        self.has_area() || self.mask.is_some()
    }

    /// Whether the part's prediction is computed for a rectangle alone.
    pub fn has_area(&self) -> bool {
        self.pixels.is_some() || self.share.is_some() || self.bounds
    }

    /// The first invalid value and the expected one; `None` if all are valid.
    pub(crate) fn problem(&self) -> Option<(String, String)> {
        let found = |text: String, expected: &str| Some((text, expected.to_string()));
        match (self.pixels, self.share) {
            (Some(_), Some(_)) => return found("`pixels` and `share`".into(), "one of them"),
            (Some(area @ [.., width, height]), None) if width == 0 || height == 0 => {
                return found(format!("pixels={area:?}"), "a width and a height of at least 1");
            }
            (None, Some(area)) if !area.iter().all(|part| (0.0..=1.0).contains(part)) => {
                return found(format!("share={area:?}"), "numbers from 0 to 1");
            }
            (area, share) if self.bounds && (area.is_some() || share.is_some()) => {
                return found("`bounds`".into(), "no `pixels` and no `share` with it");
            }
            _ => {}
        }
        if self.bounds && self.mask.is_none() {
            return found("`bounds`".into(), "a `mask` too");
        }
        if !(0.0..=MAX_WEIGHT).contains(&self.strength) {
            return Some((format!("strength={:?}", self.strength), format!("a strength from 0 to {MAX_WEIGHT}")));
        }
        if self.blend.len() > MAX_BLEND {
            return Some((format!("{} texts in `blend`", self.blend.len()), format!("at most {MAX_BLEND}")));
        }
        let wrong = self.blend.iter().find(|text| text.weight.is_nan() || text.weight.abs() > MAX_WEIGHT)?;
        Some((format!("weight={:?}", wrong.weight), format!("a weight from -{MAX_WEIGHT} to {MAX_WEIGHT}")))
    }
}

/// `pixels=WIDTHxHEIGHT+LEFT+TOP` or `share=..` in the same form, `mask=FILE`, `bounds=true`, `strength=0.8`, `blend=TEXT` with
/// `weight=0.5`, in any order. A text and a file's name may have commas.
impl FromStr for RegionUse {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut region, mut weight) = (Self::default(), None);
        if text.trim() == "whole" {
            return Ok(region);
        }
        for (key, value) in keyed::fields(text, &KEYS, &FREE, "pixels=WIDTHxHEIGHT+LEFT+TOP")? {
            match key {
                "pixels" => region.pixels = Some(rectangle(key, &value)?),
                "share" => region.share = Some(rectangle(key, &value)?),
                "mask" => region.mask = Some(value.into()),
                "bounds" => region.bounds = keyed::switch(key, &value)?,
                "strength" => region.strength = keyed::number(key, &value)?,
                "blend" => region.blend.push(BlendText { text: value, weight: USUAL_WEIGHT }),
                _ => weight = Some(keyed::number(key, &value)?),
            }
        }
        match (weight, region.blend.first_mut()) {
            (Some(weight), Some(text)) => text.weight = weight,
            (Some(_), None) => {
                return Err("has `weight`, expected `blend` with it, the text that has this weight".into());
            }
            (None, _) => {}
        }
        Ok(region)
    }
}

/// `WIDTHxHEIGHT+LEFT+TOP` as left, top, width, height.
fn rectangle<N: FromStr + Copy>(key: &str, text: &str) -> Result<[N; 4], String> {
    let parse = || {
        let (size, place) = text.split_once('+')?;
        let ((width, height), (left, top)) = (size.split_once('x')?, place.split_once('+')?);
        let [left, top, width, height] = [left, top, width, height].map(|part| part.trim().parse::<N>().ok());
        Some([left?, top?, width?, height?])
    };
    parse().ok_or_else(|| format!("`{key}` is {text}, expected WIDTHxHEIGHT+LEFT+TOP"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_in_any_order() {
        let region: RegionUse = "strength=0.5,pixels=256x512+64+0,blend=a cat, asleep,weight=0.25".parse().unwrap();
        assert_eq!((region.pixels, region.strength), (Some([64, 0, 256, 512]), 0.5));
        assert_eq!(region.blend, [BlendText { text: "a cat, asleep".into(), weight: 0.25 }]);
        let share: RegionUse = "share=0.5x1+.25+0".parse().unwrap();
        assert_eq!(share.share, Some([0.25, 0.0, 0.5, 1.0]));
        let masked: RegionUse = "mask=a, b.png,bounds=on".parse().unwrap();
        assert_eq!((masked.mask, masked.bounds), (Some("a, b.png".into()), true));
        assert_eq!("whole".parse(), Ok(RegionUse::default()));
        for (wrong, message) in [
            ("pixels=256", "expected WIDTHxHEIGHT+LEFT+TOP"),
            ("weight=1", "expected `blend`"),
            ("left=3", "none of its fields"),
        ] {
            assert!(wrong.parse::<RegionUse>().unwrap_err().contains(message), "{wrong}");
        }
    }

    #[test]
    fn json_has_what_is_not_a_default() {
        let region: RegionUse =
            serde_json::from_str(r#"{"share":[0,0,0.5,1],"blend":[{"text":"b","weight":0.3}]}"#).unwrap();
        assert_eq!(region.share, Some([0.0, 0.0, 0.5, 1.0]));
        assert_eq!(serde_json::to_string(&RegionUse::default()).unwrap(), "{}");
        let json = serde_json::to_string(&region).unwrap();
        assert_eq!(serde_json::from_str::<RegionUse>(&json).unwrap(), region);
        assert!(serde_json::from_str::<RegionUse>(r#"{"area":[0,0,1,1]}"#).is_err());
    }

    #[test]
    fn impossible_values_are_named() {
        let problem = |text: &str| text.parse::<RegionUse>().unwrap().problem().map(|(_, expected)| expected);
        assert_eq!(problem("pixels=8x8+0+0"), None);
        for (text, expected) in [
            ("pixels=8x8+0+0,share=1x1+0+0", "one of them"),
            ("pixels=0x8+0+0", "at least 1"),
            ("share=2x1+0+0", "from 0 to 1"),
            ("bounds=true", "a `mask` too"),
            ("mask=a,bounds=true,pixels=8x8+0+0", "no `pixels`"),
            ("strength=-1", "a strength from 0"),
            ("blend=a,weight=1000", "a weight from"),
        ] {
            assert!(problem(text).unwrap().contains(expected), "{text}");
        }
    }
}
