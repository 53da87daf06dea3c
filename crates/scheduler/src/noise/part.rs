//! The part of an image in the draws of a batch.

use std::fmt;
use std::str::FromStr;

use crate::rng::Rng;

/// An image's part of the noise of a batch whose images share one generator, as text `2/4` for the second of four. So ComfyUI draws
/// the noise of a batch, and diffusers with a single generator: a draw is one tensor `(count, c, h, w)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoisePart {
    index: usize,
    count: usize,
}

impl NoisePart {
    /// The most images of a batch: each of them draws the noise of all.
    pub const MOST: usize = 64;

    /// Image `index` of `count`, counted from 0. `None` if there is no such image, and for more than [`Self::MOST`].
    pub fn new(index: usize, count: usize) -> Option<Self> {
        (index < count && count <= Self::MOST).then_some(Self { index, count })
    }

    /// The part of the image `images` further on; `None` past the last one.
    pub fn after(self, images: usize) -> Option<Self> {
        Self::new(self.index.checked_add(images)?, self.count)
    }
}

/// `n` normals: an image's part of a draw for all images, or a draw of its own.
pub(crate) fn normals(part: Option<NoisePart>, rng: &mut Rng, n: usize) -> Vec<f32> {
    match part {
        Some(NoisePart { index, count }) => rng.normals(n * count).split_off(n * index).into_iter().take(n).collect(),
        None => rng.normals(n),
    }
}

impl FromStr for NoisePart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('/').and_then(|(image, count)| {
            Some((image.trim().parse::<usize>().ok()?.checked_sub(1)?, count.trim().parse().ok()?))
        });
        let part = numbers.and_then(|(index, count)| Self::new(index, count));
        part.ok_or_else(|| format!("expected an image of a batch of at most {}, as 2/4", Self::MOST))
    }
}

impl fmt::Display for NoisePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index + 1, self.count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_images_of_a_batch() {
        let part: NoisePart = "2/4".parse().unwrap();
        assert_eq!((part, part.to_string()), (NoisePart::new(1, 4).unwrap(), "2/4".into()));
        assert_eq!((part.after(2), part.after(3), part.after(usize::MAX)), (NoisePart::new(3, 4), None, None));
        for text in ["", "2", "0/4", "5/4", "1/0", "1/65", "a/b", "-1/4", "1/4/2"] {
            assert!(text.parse::<NoisePart>().unwrap_err().contains("as 2/4"), "{text}");
        }
    }
}
