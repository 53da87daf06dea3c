//! Files with an image's features, or with the vector of a face's identity, that another program computed.

use std::path::Path;

use candle_core::{Device, Tensor};
use kiln_weights::{Checkpoint, ParamSource};

use crate::error::{Error, Result};

/// The name of the tensor that is taken where a file has several.
const NAME: &str = "image_embeds";

/// The most images of a file, each of which adds tokens to every cross-attention.
const MOST_IMAGES: usize = 16;
/// The most tokens of all images of a file. The usual image encoder has 257 for an image, the largest some 730.
const MOST_TOKENS: usize = 4_112;

/// Features of images for an IP-Adapter, in f32 in the host's memory.
#[derive(Debug, Clone)]
pub struct ImageEmbeds {
    /// The features of the unconditional half, of the shape of [`Self::positive`], if the file has them.
    pub negative: Option<Tensor>,
    /// `(n, d)` for embeddings and vectors, `(n, t, d)` for tokens, of `n` images.
    pub positive: Tensor,
}

impl ImageEmbeds {
    /// Reads a file in any format of [`Checkpoint::open`]: one tensor, or the one of name `image_embeds`. As diffusers'
    /// `ip_adapter_image_embeds` it is `(1, n, d)`, or `(2, n, d)` with those of the unconditional half first; with `t` tokens an
    /// image `(1, n, t, d)` or `(2, n, t, d)`. A vector alone is `(d)` or `(1, d)`. `is_tokens` says that there are tokens, `dim`
    /// is `d`. A file has at most 16 images, and at most 4,112 tokens in all: those of 16 images of the usual encoder.
    ///
    /// # Errors
    /// [`Error::Files`] if there is no such file, [`Error::Weights`] if it cannot be read, [`Error::Model`] for other shapes.
    pub fn open(path: &Path, is_tokens: bool, dim: usize) -> Result<Self> {
        if !path.exists() {
            return Err(Error::not_found(path, "`embeds` of an IP-Adapter: a file with an image's features".into()));
        }
        let file = Checkpoint::open(path)?;
        let keys = file.keys();
        let key = match keys.as_slice() {
            [one] => one.as_str(),
            many if many.iter().any(|key| key == NAME) => NAME,
            many => {
                let problem = format!("has {} tensors, expected one, or one of the name `{NAME}`", many.len());
                return Err(Error::model(path, problem));
            }
        };
        let Some(data) = file.data(key)? else {
            return Err(Error::model(path, format!("`{key}` has no numbers")));
        };
        let shape = data.info.shape.clone();
        let expected = match is_tokens {
            true => format!("(1 or 2, n, t, {dim}): the tokens of an image encoder"),
            false => format!("(1 or 2, n, {dim}), or {dim} values"),
        };
        let refuse = || Error::model(path, format!("`{key}` has the shape {shape:?}, expected {expected}"));
        // Halves, then one image's shape.
        let (halves, rest): (usize, Vec<usize>) = match (is_tokens, shape.as_slice()) {
            (false, [d]) => (1, vec![1, *d]),
            (false, [1, d]) => (1, vec![1, *d]),
            (false, [halves, n, d]) => (*halves, vec![*n, *d]),
            (true, [halves, t, d]) => (*halves, vec![1, *t, *d]),
            (true, [halves, n, t, d]) => (*halves, vec![*n, *t, *d]),
            _ => return Err(refuse()),
        };
        if !(1..=2).contains(&halves) || rest.last() != Some(&dim) || rest.contains(&0) {
            return Err(refuse());
        }
        // What they become is attended to in every step, and a plan knows one image: refused before they are converted.
        let (images, tokens) = (rest[0], rest[..rest.len() - 1].iter().fold(1usize, |all, n| all.saturating_mul(*n)));
        if images > MOST_IMAGES || tokens > MOST_TOKENS {
            let found = format!("`{key}` has the shape {shape:?}, {images} images of {tokens} tokens in all");
            return Err(Error::model(
                path,
                format!("{found}, expected at most {MOST_IMAGES} images and {MOST_TOKENS} tokens"),
            ));
        }
        let Some(values) = data.to_f32() else {
            return Err(Error::model(path, format!("`{key}` has no numbers")));
        };
        if let Some(odd) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::model(path, format!("`{key}` has the value {odd}, expected finite numbers")));
        }
        let tensor = |values: &[f32]| {
            Tensor::from_slice(values, rest.as_slice(), &Device::Cpu)
                .map_err(|error| Error::model(path, format!("`{key}`: {error}")))
        };
        let (first, second) = values.split_at(values.len() / halves * (halves - 1));
        Ok(Self { negative: (halves == 2).then(|| tensor(first)).transpose()?, positive: tensor(second)? })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use candle_core::DType;

    use super::*;

    #[test]
    fn more_images_or_tokens_than_a_prompt_may_have_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let open = |shape: &[usize], is_tokens| {
            let path = folder.path().join("embeds.safetensors");
            let tensor = Tensor::zeros(shape, DType::F16, &Device::Cpu).unwrap();
            candle_core::safetensors::save(&HashMap::from([("x", tensor)]), &path).unwrap();
            ImageEmbeds::open(&path, is_tokens, 4).map(|embeds| embeds.positive.dims().to_vec())
        };
        assert_eq!(open(&[1, 257, 4], true).unwrap(), [1, 257, 4]);
        assert_eq!(open(&[2, 16, 257, 4], true).unwrap(), [16, 257, 4]);
        assert_eq!(open(&[1, 16, 4], false).unwrap(), [16, 4]);
        for (shape, is_tokens) in [(&[1, 100_000, 4][..], true), (&[1, 17, 1, 4], true), (&[1, 17, 4], false)] {
            let message = open(shape, is_tokens).unwrap_err().to_string();
            assert!(message.contains("expected at most 16 images and 4112 tokens"), "{message}");
        }
        assert!(open(&[1, 0, 4], true).unwrap_err().to_string().contains("expected (1 or 2, n, t, 4)"));
    }
}
