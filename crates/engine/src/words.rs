//! Textual inversion: tokens of a prompt with their own embeddings.
//!
//! They come from `Setup::embeddings_dir`, by the name of the file or the word inside it, and from LoRA files that bring
//! words along. Of a word that a prompt names, every text encoder of the model needs vectors, and of the same number:
//! otherwise the encoders would not see the same text in the same places.

use std::path::Path;
use std::sync::Arc;

use candle_core::Tensor;
use kiln_clip::{TextEncoder, TokenEmbeddings};
use kiln_families::{TEXT_ENCODER, TEXT_ENCODER_2};
use kiln_prompt::mentions;
use kiln_request::weight_files;
use kiln_weights::{Lora, Network, TextualInversion};

use crate::embedding_names::EMBEDDING_ENDINGS;
use crate::error::Result;

/// The text encoders in the model's order.
pub(crate) const TEXT_ENCODERS: [Network; 2] = [TEXT_ENCODER, TEXT_ENCODER_2];

/// The available embeddings. Their vectors are read when a prompt contains them.
#[derive(Default)]
pub(crate) struct Embeddings {
    files: Vec<TextualInversion>,
    loras: Vec<Arc<Lora>>,
}

impl Embeddings {
    /// The embeddings of a folder and its subfolders. An invalid file is logged and skipped.
    ///
    /// # Errors
    /// [`crate::Error::Files`] if the folder cannot be read.
    pub(crate) fn open(folder: Option<&Path>) -> Result<Self> {
        let Some(folder) = folder else { return Ok(Self::default()) };
        let mut this = Self::default();
        for path in weight_files(folder, &EMBEDDING_ENDINGS)? {
            match TextualInversion::open(&path) {
                Ok(file) => this.files.push(file),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        tracing::info!(folder = %folder.display(), embeddings = this.files.len(), "embeddings");
        Ok(this)
    }

    /// Replaces the tokens of earlier LoRAs by those of these LoRAs. Returns whether they changed.
    pub(crate) fn set_loras<'a>(&mut self, loras: impl Iterator<Item = &'a Arc<Lora>>) -> bool {
        let with_words = loras.filter(|lora| !lora.words().is_empty()).cloned().collect();
        let before = std::mem::replace(&mut self.loras, with_words);
        !before.iter().map(Arc::as_ptr).eq(self.loras.iter().map(Arc::as_ptr))
    }

    /// Whether a text has any of these tokens.
    pub(crate) fn are_named_in(&self, text: &str) -> bool {
        let words = self.loras.iter().flat_map(|lora| lora.words());
        self.files.iter().flat_map(TextualInversion::names).chain(words).any(|name| mentions(text, name))
    }

    /// The tokens in `texts` for each encoder, of which the first has place `first` in [`TEXT_ENCODERS`].
    ///
    /// # Errors
    /// Errors of reading the vectors.
    pub(crate) fn named_in(
        &self,
        texts: &[&str],
        first: usize,
        encoders: &[&TextEncoder],
    ) -> Result<Vec<TokenEmbeddings>> {
        let mut words: Vec<TokenEmbeddings> = encoders.iter().map(|encoder| encoder.token_embeddings()).collect();
        let is_named = |name: &str| texts.iter().any(|text| mentions(text, name));
        for file in &self.files {
            for name in file.names().filter(|name| is_named(name)) {
                add(&mut words, (first, encoders), name, &file.origin(), |network| file.vectors(network))?;
            }
        }
        for lora in &self.loras {
            for name in lora.words().into_iter().filter(|name| is_named(name)) {
                add(&mut words, (first, encoders), name, "a LoRA file", |network| lora.vectors(name, network))?;
            }
        }
        Ok(words)
    }
}

/// Adds a token for all encoders, or logs why it stays text.
fn add(
    words: &mut [TokenEmbeddings],
    (first, encoders): (usize, &[&TextEncoder]),
    name: &str,
    origin: &str,
    vectors: impl Fn(Network) -> kiln_weights::Result<Option<Tensor>>,
) -> Result<()> {
    let vectors = TEXT_ENCODERS
        .into_iter()
        .skip(first)
        .take(encoders.len())
        .map(vectors)
        .collect::<kiln_weights::Result<Vec<_>>>()?;
    let fits = |(vectors, encoder): (&Option<Tensor>, &&TextEncoder)| {
        vectors.as_ref().is_some_and(|vectors| vectors.dims().last() == Some(&encoder.config().hidden_size))
    };
    let count = |vectors: &Option<Tensor>| vectors.as_ref().map(|vectors| vectors.dims().first().copied());
    let same = vectors.windows(2).all(|pair| count(&pair[0]) == count(&pair[1]));
    if !same || !vectors.iter().zip(encoders).all(fits) {
        tracing::warn!("`{name}` stays text: the vectors in {origin} are not for this model's text encoders");
        return Ok(());
    }
    for (words, vectors) in words.iter_mut().zip(vectors.iter().flatten()) {
        words.add(name, vectors)?;
    }
    Ok(())
}
