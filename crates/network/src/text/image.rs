//! Images that text encoders see with a text.

use std::fmt::{self, Debug, Formatter};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use kiln_files::sha256;
use kiln_media::Rgb8Image;

/// An image that a text encoder sees with a text. Two are equal if their digests are.
#[derive(Clone)]
pub struct PromptImage {
    image: Option<Arc<Rgb8Image>>,
    size: (usize, usize),
    digest: Arc<str>,
}

impl PromptImage {
    /// An image in the size that the model's rule gives it.
    pub fn new(image: Arc<Rgb8Image>) -> Self {
        let size @ (width, height) = image.size();
        let digest = sha256(&[format!("{width}x{height} ").as_bytes(), image.data()].concat());
        Self { image: Some(image), size, digest: digest.into() }
    }

    /// The image; `None` if only its size and digest are kept.
    pub fn image(&self) -> Option<&Rgb8Image> {
        self.image.as_deref()
    }

    /// Width and height in pixels.
    pub fn size(&self) -> (usize, usize) {
        self.size
    }

    /// Its size and digest, for the keys of stores that keep many texts.
    #[must_use]
    pub fn without_pixels(&self) -> Self {
        Self { image: None, ..self.clone() }
    }

    /// The SHA-256 of size and pixels, in hexadecimal digits.
    pub fn digest(&self) -> &str {
        &self.digest
    }
}

impl PartialEq for PromptImage {
    fn eq(&self, other: &Self) -> bool {
        self.digest == other.digest
    }
}

impl Eq for PromptImage {}

impl Hash for PromptImage {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.digest.hash(state);
    }
}

impl Debug for PromptImage {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let (width, height) = self.size;
        write!(f, "PromptImage({width}x{height}, {})", self.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_equal_if_size_and_pixels_are() {
        let image =
            |width, height, value| PromptImage::new(Arc::new(Rgb8Image::filled(width, height, [value; 3]).unwrap()));
        assert_eq!(image(2, 3, 7), image(2, 3, 7));
        assert!([image(3, 2, 7), image(2, 3, 8)].into_iter().all(|other| other != image(2, 3, 7)));
        assert_eq!(image(2, 3, 7).digest().len(), 64);
        let key = image(2, 3, 7).without_pixels();
        assert!(key == image(2, 3, 7) && key.image().is_none() && key.size() == (2, 3));
    }
}
