//! Files with an image's features, or with the vector of a face's identity, that another program computed.

use std::path::Path;

use candle_core::{Device, Tensor};
use kiln_weights::{Checkpoint, ParamSource};

use crate::error::{Error, Result};

/// The name of the tensor that is taken where a file has several.
const NAME: &str = "image_embeds";

/// Features of images for an IP-Adapter, in f32 in the host's memory.
#[derive(Debug, Clone)]
pub struct ImageEmbeds {
    /// Those of the unconditional half, of the shape of [`Self::positive`], where the file has them.
    pub negative: Option<Tensor>,
    /// `(n, d)` for embeddings and vectors, `(n, t, d)` for tokens, of `n` images.
    pub positive: Tensor,
}

impl ImageEmbeds {
    /// Reads a file in any format of [`Checkpoint::open`]: one tensor, or the one of name `image_embeds`. As diffusers'
    /// `ip_adapter_image_embeds` it is `(1, n, d)`, or `(2, n, d)` with those of the unconditional half first; with `t` tokens an
    /// image `(1, n, t, d)` or `(2, n, t, d)`. A vector alone is `(d)` or `(1, d)`. `is_tokens` says that there are tokens, `dim`
    /// is `d`.
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
        let values = file.data(key)?.and_then(|data| Some((data.info.shape.clone(), data.to_f32()?)));
        let Some((shape, values)) = values else {
            return Err(Error::model(path, format!("`{key}` has no numbers")));
        };
        if let Some(odd) = values.iter().find(|value| !value.is_finite()) {
            return Err(Error::model(path, format!("`{key}` has the value {odd}, expected finite numbers")));
        }
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
        if !(1..=2).contains(&halves) || rest.last() != Some(&dim) || values.is_empty() {
            return Err(refuse());
        }
        let tensor = |values: &[f32]| {
            Tensor::from_slice(values, rest.as_slice(), &Device::Cpu)
                .map_err(|error| Error::model(path, format!("`{key}`: {error}")))
        };
        let (first, second) = values.split_at(values.len() / halves * (halves - 1));
        Ok(Self { negative: (halves == 2).then(|| tensor(first)).transpose()?, positive: tensor(second)? })
    }
}
