//! Textual inversion: files with vectors that replace tokens of a prompt.
//!
//! | Dialect | Tensors |
//! | --- | --- |
//! | diffusers (`learned_embeds`) | the word itself, `(d)` or `(n, d)` |
//! | InvokeAI | `emb_params` `(n, d)` |
//! | AUTOMATIC1111's `.pt` | `string_to_param` with `*` `(n, d)` |
//! | SDXL | `clip_l` `(n, 768)` and `clip_g` `(n, 1280)` |
//!
//! AUTOMATIC1111 names an embedding after its file, diffusers after the word in the file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{Device, Tensor};

use crate::error::{Error, Result};
use crate::formats::Checkpoint;
use crate::lora::{FIRST_TEXT, Network, SECOND_TEXT};
use crate::source::ParamSource;

/// The tensor names that are not words: `(name, id of the text encoder)`.
const FIXED: [(&str, &str); 5] = [
    ("emb_params", FIRST_TEXT),
    ("string_to_param.*", FIRST_TEXT),
    ("*", FIRST_TEXT),
    ("clip_l", FIRST_TEXT),
    ("clip_g", SECOND_TEXT),
];

/// A file with the vectors of a word.
pub struct TextualInversion {
    source: Arc<dyn ParamSource>,
    /// The file's name without its ending.
    stem: String,
    /// The word in the file, if there is one.
    word: Option<String>,
    /// The tensors, at most one for each text encoder.
    tensors: Vec<(String, &'static str)>,
}

impl TextualInversion {
    /// Opens a file: safetensors, or a `.pt` or `.bin` of PyTorch, which is read without running code.
    ///
    /// # Errors
    /// Errors of [`Checkpoint::open`] and [`Self::read`].
    pub fn open(path: &Path) -> Result<Self> {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Self::read(Arc::new(Checkpoint::open(path)?), stem)
    }

    /// The vectors in `source`, a file with the name `stem`.
    ///
    /// # Errors
    /// [`Error::Format`] if the file contains no embedding.
    pub fn read(source: Arc<dyn ParamSource>, stem: impl Into<String>) -> Result<Self> {
        let vectors = |key: &str| {
            let shape = source.info(key).map(|info| info.shape).unwrap_or_default();
            matches!(shape.len(), 1 | 2) && !shape.contains(&0)
        };
        let mut tensors: Vec<(String, &'static str)> = FIXED
            .iter()
            .filter(|(name, _)| vectors(name))
            .map(|&(name, network)| (name.to_string(), network))
            .collect();
        let mut word = None;
        let keys = source.keys();
        if let ([key], true) = (keys.as_slice(), tensors.is_empty())
            && vectors(key)
        {
            word = Some(key.clone());
            tensors.push((key.clone(), FIRST_TEXT));
        }
        if tensors.is_empty() {
            let problem = "is not an embedding: expected `emb_params`, `clip_l` and `clip_g`, `string_to_param`, or a \
                           single tensor with the name of a word";
            return Err(Error::Format { path: PathBuf::from(source.origin("")), problem: problem.into() });
        }
        Ok(Self { source, stem: stem.into(), word, tensors })
    }

    /// The names for a prompt: the file's name, and the word in the file.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let word = self.word.as_deref().filter(|word| *word != self.stem);
        std::iter::once(self.stem.as_str()).chain(word)
    }

    /// The vectors for a text encoder, `(n, d)` in f32. `None` if the file has none for it.
    ///
    /// # Errors
    /// [`Error::StoredDType`] if they are not numbers.
    pub fn vectors(&self, network: Network) -> Result<Option<Tensor>> {
        let Some((key, _)) = self.tensors.iter().find(|(_, of)| *of == network.id) else { return Ok(None) };
        let Some(data) = self.source.data(key)? else { return Ok(None) };
        let Some(values) = data.to_f32() else {
            let (origin, key) = (self.source.origin(key), key.clone());
            return Err(Error::StoredDType { origin, key, found: format!("{:?}", data.info.dtype) });
        };
        Ok(Some(rows(&Tensor::from_vec(values, data.info.shape.as_slice(), &Device::Cpu)?)?))
    }

    /// The file.
    pub fn origin(&self) -> String {
        self.source.origin("")
    }
}

/// One vector `(d)`, or several `(n, d)`, as `(n, d)`.
pub(crate) fn rows(vectors: &Tensor) -> candle_core::Result<Tensor> {
    let columns = vectors.dims().last().copied().unwrap_or(1);
    vectors.reshape(((), columns))
}
