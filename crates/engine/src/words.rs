//! Textual inversion: tokens of a prompt with their own embeddings.
//!
//! They come from `Setup::embeddings_dir`, by the name of the file or the word inside it, and from LoRA files that bring
//! words along. Of a word that a prompt names, every text encoder of the model needs vectors, and of the same number:
//! otherwise the encoders would not see the same text in the same places.

use std::path::Path;
use std::sync::Arc;

use kiln_network::text::{Word, Words};
use kiln_prompt::mentions;
use kiln_request::weight_files;
use kiln_weights::{Lora, TextualInversion};

use crate::embedding_names::EMBEDDING_ENDINGS;
use crate::error::Result;

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
}

impl Words for Embeddings {
    fn named_in<'a>(&'a self, texts: &[&str]) -> Vec<Word<'a>> {
        let is_named = |name: &str| texts.iter().any(|text| mentions(text, name));
        let of_file = |file: &'a TextualInversion| {
            let word = move |name: &'a str| Word {
                name,
                origin: file.origin(),
                vectors: Box::new(move |network| file.vectors(network)),
            };
            file.names().filter(|name| is_named(name)).map(word).collect::<Vec<_>>()
        };
        let of_lora = |lora: &'a Arc<Lora>| {
            let word = move |name: &'a str| {
                let vectors = Box::new(move |network| lora.vectors(name, network));
                Word { name, origin: "a LoRA file".into(), vectors }
            };
            lora.words().into_iter().filter(|name| is_named(name)).map(word).collect::<Vec<_>>()
        };
        self.files.iter().flat_map(of_file).chain(self.loras.iter().flat_map(of_lora)).collect()
    }
}
