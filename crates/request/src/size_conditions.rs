//! SDXL's sizes, which its denoiser takes besides texts (arXiv 2307.01952, sections 2.2 and 2.3).
//!
//! The default of an option is diffusers': sizes of the images themselves, a crop at 0,0, and for unconditional rows the
//! values of the conditional ones. diffusers' text-to-image pipeline takes negative values only if both negative sizes are
//! given; here each is taken by itself.

use std::fmt;
use std::str::FromStr;

use kiln_models::ModelFolder;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::job::Job;
use crate::options::{OPTIONS, Request, SizeOptions};

/// The largest side or offset in pixels. Larger numbers have no meaning for a model: its training images had some thousands.
const LARGEST: usize = 65_536;

/// Where an image of the training was cut out of a larger one, `X,Y` as text: pixels to the left of it and above it. The order of
/// diffusers' `crops_coords_top_left` is the other one, top before left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Crop {
    /// Pixels to the left.
    pub left: usize,
    /// Pixels above.
    pub top: usize,
}

impl FromStr for Crop {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let number = |text: &str| text.trim().parse().ok().filter(|&pixels| pixels <= LARGEST);
        let both = text.split_once(',').and_then(|(left, top)| Some((number(left)?, number(top)?)));
        let (left, top) =
            both.ok_or_else(|| format!("expected pixels from 0 to {LARGEST} to the left and above, as in 16,0"))?;
        Ok(Self { left, top })
    }
}

impl fmt::Display for Crop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.left, self.top)
    }
}

impl From<Crop> for String {
    fn from(crop: Crop) -> Self {
        crop.to_string()
    }
}

impl TryFrom<String> for Crop {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        text.parse()
    }
}

/// The sizes that a row of SDXL's denoiser takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeConditions {
    /// Width and height in pixels of the image before it was made smaller and cut for the training.
    pub original: (usize, usize),
    /// Where it was cut.
    pub crop: Crop,
    /// Width and height in pixels of the result. Refiners do not take it.
    pub target: (usize, usize),
}

impl SizeConditions {
    /// diffusers' default for images of this width and height.
    pub fn of_image(size: (usize, usize)) -> Self {
        Self { original: size, crop: Crop::default(), target: size }
    }
}

impl SizeOptions {
    /// Refuses sizes out of range, and targets for a refiner. Rows of the table refuse all of them for a model that takes none.
    pub(crate) fn check(self, request: &Request, model: &ModelFolder) -> Result<Self> {
        let asked = |name: &str| OPTIONS.iter().find(|row| row.name == name).map(|row| row.value(request));
        let refuse = |name: &'static str, expected: String| {
            Err(Error::Value { name, found: asked(name).map(|value| value.shown()).unwrap_or_default(), expected })
        };
        let is_asked = |name: &&&str| asked(name).is_some_and(|value| value.is_set());
        if !Self::NAMES.iter().any(|name| is_asked(&name)) {
            return Ok(self);
        }
        let targets = ["target_size", "negative_target_size"];
        if let Some(&target) = targets.iter().find(|name| model.is_refiner() && is_asked(name)) {
            return refuse(target, format!("none: {}, a refiner, takes `aesthetic_score` instead", model.name()));
        }
        let sides = [
            ("original_size", self.original),
            ("target_size", self.target),
            ("negative_original_size", self.negative_original),
            ("negative_target_size", self.negative_target),
        ];
        let is_wrong = |size: (usize, usize)| size.0.min(size.1) == 0 || size.0.max(size.1) > LARGEST;
        match sides.into_iter().find(|(_, size)| size.is_some_and(is_wrong)) {
            Some((name, _)) => refuse(name, format!("sides from 1 to {LARGEST} pixels")),
            None => Ok(self),
        }
    }
}

impl Job {
    /// The sizes of unconditional and of conditional rows.
    pub fn size_conditions(&self) -> [SizeConditions; 2] {
        let (image, asked) = (SizeConditions::of_image((self.width, self.height)), &self.sizes);
        let conditional = SizeConditions {
            original: asked.original.unwrap_or(image.original),
            crop: asked.crop.unwrap_or(image.crop),
            target: asked.target.unwrap_or(image.target),
        };
        let unconditional = SizeConditions {
            original: asked.negative_original.unwrap_or(conditional.original),
            crop: asked.negative_crop.unwrap_or(conditional.crop),
            target: asked.negative_target.unwrap_or(conditional.target),
        };
        [unconditional, conditional]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(model: &str, request: Request) -> Result<Job> {
        request.resolve(&ModelFolder::open(&kiln_testkit::fixtures(&format!("models/{model}"))).unwrap())
    }

    #[test]
    fn sizes_that_are_left_out_are_those_of_the_image_and_of_the_other_rows() {
        let (width, height) = (Some(64), Some(48));
        let plain = Request { width, height, ..Request::default() };
        let of_image = SizeConditions::of_image((64, 48));
        assert_eq!(resolved("sdxl", plain.clone()).unwrap().size_conditions(), [of_image; 2]);
        let crop = "16,0".parse().unwrap();
        let asked = Request { original_size: Some((200, 100)), crop: Some(crop), ..plain };
        let conditional = SizeConditions { original: (200, 100), crop: Crop { left: 16, top: 0 }, target: (64, 48) };
        assert_eq!(resolved("sdxl", asked.clone()).unwrap().size_conditions(), [conditional; 2]);
        let negative = Request { negative_crop: Some(Crop::default()), negative_target_size: Some((8, 9)), ..asked };
        let unconditional = SizeConditions { crop: Crop::default(), target: (8, 9), ..conditional };
        assert_eq!(resolved("sdxl", negative).unwrap().size_conditions(), [unconditional, conditional]);
    }

    #[test]
    fn sizes_that_mean_nothing_are_refused() {
        let crop = Request { crop: Some(Crop::default()), ..Request::default() };
        let message = resolved("sd1", crop).unwrap_err().to_string();
        assert_eq!(
            message,
            "`crop` is \"0,0\", expected none: it works with models that take sizes, as SDXL, and sd1 is none"
        );
        for size in [(0, 8), (8, 65_537)] {
            let request = Request { negative_original_size: Some(size), ..Request::default() };
            let message = resolved("sdxl", request).unwrap_err().to_string();
            assert!(
                message.starts_with("`negative_original_size` is ") && message.contains("from 1 to 65536"),
                "{message}"
            );
        }
        for text in ["16", "16x0", "-1,0", "0,65537", ",", "1,2,3"] {
            assert!(text.parse::<Crop>().is_err(), "{text}");
        }
    }
}
